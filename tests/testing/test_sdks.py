"""The official and the community SDK against the meeting server: other people's requests.

The JavaScript SDK of this version sends snake_case; what later ones send in camelCase is among the
golden requests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.raw_http import talk, upload

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

JAVASCRIPT = """
const {PlugNmeet} = require('plugnmeet-sdk-js');
const api = new PlugNmeet(process.argv[2], 'devkey', 'devsecret');
const room = {room_id: 'fresh'};
const user = {name: 'Ada', user_id: 'ada', is_admin: true, is_hidden: false};
const title = {room_title: 'Fresh', room_features: {allow_webcams: true}};
(async () => {
  const done = [
    await api.isRoomActive(room),
    await api.createRoom({...room, metadata: title}),
    await api.getJoinToken({...room, user_info: user}),
    await api.getActiveRoomInfo(room),
    await api.getActiveRoomsInfo(),
    await api.getActiveRoomInfo({room_id: 'nowhere'}),
  ];
  console.log(JSON.stringify(done));
})();
"""


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Run a server without rooms."""
    server = MeetingServer()
    with server.run():
        yield server


def test_the_javascript_sdk(server: MeetingServer, tmp_path: Path) -> None:
    """Creates a room with a presenter, to which a document can be uploaded."""
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("needs Node.js with npm")
    command = ["npm", "install", "--ignore-scripts", "--no-fund", "plugnmeet-sdk-js@1.4.1"]
    installed = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    (tmp_path / "calls.cjs").write_text(JAVASCRIPT)
    command = ["node", "calls.cjs", server.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    before, created, token, info, rooms, missing = json.loads(done.stdout)
    assert before["status"] is True
    assert [reply["status"] for reply in (created, token, info, rooms)] == [True] * 4
    assert info["room"]["room_info"]["room_title"] == "Fresh"
    assert missing["status"] is False
    assert talk(server.url, upload(room="fresh")).status == 200


@pytest.mark.anyio
async def test_the_python_sdk(server: MeetingServer) -> None:
    """Its unset fields are null, which is protobuf JSON for "not set"."""
    sdk = import_module("plugnmeet_sdk.PlugNMeet")  # it has no types
    data = import_module("plugnmeet_sdk.schemas.data")
    requests = import_module("plugnmeet_sdk.schemas.requests")
    api = sdk.PlugNMeet(server.url, "devkey", "devsecret")
    room = requests.RoomStatusRequest("room01")
    assert (await api.isRoomActive(room))[1]["status"] is True
    server.add_room("room01")
    status, info = await api.getActiveRoomInfo(requests.GetActiveRoomInfoRequest("room01"))
    assert (status, info["room"]["room_info"]["room_id"]) == (200, "room01")
    user = data.UserInfo("Ada", "ada", is_admin=False, user_metadata=None)
    status, token = await api.getJoinToken(requests.JoinRoomRequest("room01", user))
    assert (status, token["status"]) == (200, True)
    assert (await api.endRoom(requests.EndRoomRequest("room01")))[1]["status"] is True
    _, past = await api.fetchPastRoomsInfo(requests.FetchPastRoomsInfoRequest(["room01"]))
    assert past["result"]["total_rooms"] == "1"
