// The same work as `hammer` in _call_clients.py, for node's SDK. Prints a sample as JSON.
'use strict';

const WARM_UP_CALLS = 2;

const job = JSON.parse(process.argv[2]);
const { PlugNmeet } = require(job.package);
const sdk = new PlugNmeet(job.base_url, job.key, job.secret);

const now = () => Number(process.hrtime.bigint()) / 1e9;

async function call() {
  const reply = await sdk.getActiveRoomInfo({ room_id: job.room });
  if (reply.status !== true) throw new Error(`the responder refused: ${JSON.stringify(reply)}`);
}

const all = (worker) => Promise.all(Array.from({ length: job.concurrency }, worker));

async function warmUp() {
  for (let count = 0; count < WARM_UP_CALLS; count++) await call();
}

async function main() {
  const latencies = [];
  await all(warmUp);
  const cpu = process.cpuUsage();
  const start = now();
  await all(async () => {
    let began = now();
    while (began < start + job.seconds) {
      await call();
      const ended = now();
      latencies.push(ended - began);
      began = ended;
    }
  });
  const seconds = now() - start;
  const used = process.cpuUsage(cpu);
  latencies.sort((a, b) => a - b);
  const percentile = (percent) =>
    latencies[Math.max(0, Math.ceil((latencies.length * percent) / 100) - 1)];
  const sample = {
    seconds,
    cpu_seconds: (used.user + used.system) / 1e6,
    calls: latencies.length,
    p50_seconds: percentile(50),
    p99_seconds: percentile(99),
  };
  console.log(JSON.stringify(sample));
  process.exit(0);
}

main().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
