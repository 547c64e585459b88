"""How the page of a batch looks, and the script that filters and sorts its table.

Colours are those of the charts in ``docs/``; blue, grey and orange stay apart for the colour-blind.
"""

from __future__ import annotations

STYLE = """
:root{--text:#1f2328;--soft:#59636e;--line:#d1d9e0;--faint:#f6f8fa;--page:#fff;
--send:#0969da;--work:#54aeff;--wait:#818b98;--busy:#bc4c00;--bad:#cf222e;--good:#1a7f37}
@media screen and (prefers-color-scheme:dark){:root{--text:#f0f6fc;--soft:#9198a1;--line:#3d444d;
--faint:#151b23;--page:#0d1117;--send:#1f6feb;--work:#79c0ff;--wait:#818b98;--busy:#f0883e;
--bad:#f85149;--good:#3fb950}}
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;font-variant-numeric:tabular-nums;
overflow-wrap:anywhere}
main{max-width:72rem;margin:0 auto;padding:2.5rem 1.5rem 4rem}
h1{margin:.25rem 0 0;max-width:46rem;font-size:1.75rem;line-height:1.25;font-weight:600;
letter-spacing:-.01em;text-wrap:balance}
h2{margin:3rem 0 .75rem;font-size:1.2rem;line-height:1.3;font-weight:600}
h3{margin:0;font-size:1rem;font-weight:600}
p{margin:.25rem 0;max-width:46rem}
a{color:var(--send)}
@media screen and (prefers-color-scheme:dark){a{color:var(--work)}}
small,.about,.note,dt,caption{color:var(--soft);font-size:.8125rem}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
#numbers{margin-top:2rem;border-top:1px solid var(--line)}
dl{display:grid;grid-template-columns:repeat(6,1fr);margin:0;border-bottom:1px solid var(--line)}
dl div{display:flex;flex-direction:column-reverse;justify-content:flex-end;
padding:.875rem 1rem .875rem 0}
dt{line-height:1.3}
dd{margin:0;font-size:1.375rem;font-weight:600;line-height:1.3}
.traffic dd{font-size:1.0625rem}
#numbers+.note{margin-top:1rem}
.none dd{color:var(--soft);font-weight:400}
.unknown.some dd,.refused.some dd,.failed.some dd,.stop h3{color:var(--bad)}
#attention section{margin:1rem 0;padding:0 0 0 1rem;border-left:3px solid var(--line)}
#attention .unknown,#attention .stop{border-color:var(--bad)}
#attention .refused,#attention .failed{border-color:var(--busy)}
details{margin:.5rem 0}
summary small{white-space:nowrap}
summary{cursor:pointer}
summary b{font-weight:600}
details ul{margin:.25rem 0 .75rem;padding-left:2.25rem}
.legend{display:flex;flex-wrap:wrap;gap:.125rem 1.25rem;margin:0 0 .5rem;padding:0;list-style:none;
font-size:.8125rem}
.legend li{display:flex;align-items:center;gap:.375rem}
.rooms ol{margin:0;padding:0;list-style:none}
.rooms{--label:12rem;--share:5.5rem}
.rooms li{display:grid;grid-template-columns:var(--label) var(--share) 1fr;align-items:center;
margin-right:-6px;padding-right:6px;
content-visibility:auto;contain-intrinsic-size:auto 22px}
.rooms li:hover{background:var(--faint)}
.room{overflow:hidden;white-space:nowrap;text-overflow:ellipsis;font-size:.8125rem}
.rooms small{padding:0 .75rem;text-align:right;white-space:nowrap}
.rooms .trouble{color:var(--bad);font-weight:600}
svg{display:block}
.row{overflow:visible}
.axis{position:sticky;top:0;z-index:1;margin-left:calc(var(--label) + var(--share));
width:calc(100% - var(--label) - var(--share));background:var(--page);
box-shadow:calc(0px - var(--label) - var(--share)) 0 var(--page)}
.axis text{fill:var(--soft);font-size:11px}
line{stroke:var(--line)}
.axis line{transform:translateY(17px)}
.send{fill:var(--send)}
.work{fill:var(--work)}
.wait{fill:var(--wait)}
.busy,.lost{fill:var(--page);stroke:var(--busy);stroke-width:1.5}
.lost{stroke-dasharray:3 2}
circle{stroke:var(--bad);stroke-width:2}
circle.bad{fill:var(--bad)}
circle.unknown{fill:var(--page)}
form{display:flex;flex-wrap:wrap;align-items:center;gap:.5rem .75rem;margin:0 0 .75rem;
font-size:.8125rem}
form[hidden]{display:none}
input,select{font:inherit;color:inherit;background:var(--page);border:1px solid var(--line);
border-radius:4px;padding:.25rem .5rem}
input{width:18rem;max-width:70vw}
table{width:100%;border-collapse:collapse;table-layout:fixed;font-size:.8125rem}
col.n{width:7%}col.r{width:14%}col.d{width:23%}col.b{width:11%}col.o{width:12%}
col.a{width:10%}col.s{width:9%}
th,td{padding:.3125rem .5rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
thead th{font-weight:600}
tbody th{font-weight:400}
thead th{position:relative}
th button{position:absolute;inset:0;padding:0;border:0;background:none;cursor:pointer}
th[aria-sort=ascending]::after{content:" ↑"}
th[aria-sort=descending]::after{content:" ↓"}
.n,.b,.a,.s,td:nth-child(1),td:nth-child(4),td:nth-child(6),td:nth-child(7){text-align:right}
td:nth-child(1),td:last-child{color:var(--soft)}
tr.refused td:nth-child(5),tr.failed td:nth-child(5),tr.unknown td:nth-child(5){color:var(--bad);
font-weight:600}
tr:target{scroll-margin-top:3rem;background:var(--faint);outline:2px solid var(--send);
outline-offset:-2px}
@media screen{
table,thead,tbody{display:block}
thead{position:sticky;top:0;z-index:1;background:var(--page)}
tr{display:grid;grid-template-columns:3.5rem minmax(0,3fr) minmax(0,5fr) 6rem 6.5rem 5.5rem 5.5rem
minmax(0,5fr)}
tr[hidden]{display:none}
tbody tr{border-bottom:1px solid var(--line);content-visibility:auto;
contain-intrinsic-size:auto 31px}
tbody td,tbody th{border:0}
}
@media (max-width:60rem){dl{grid-template-columns:repeat(3,1fr)}}
@media screen and (max-width:44rem){
main{padding:1.5rem 1rem 3rem}
h1{font-size:1.375rem}
.rooms li{grid-template-columns:1fr auto;margin:0 -6px;padding:.25rem 6px;
contain-intrinsic-size:auto 51px}
.rooms svg.row{grid-column:1/-1}
.rooms small{padding-right:0}
.axis{margin-left:0;width:100%;box-shadow:none}
.axis .odd{display:none}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tbody tr{grid-template-columns:minmax(0,1fr) auto auto auto;gap:0 .75rem;padding:.5rem 0;
contain-intrinsic-size:auto 77px}
tbody td,tbody th{padding:0}
tbody td:nth-child(1){display:none}
tbody th{order:2;color:var(--soft)}
tbody td:nth-child(3){order:0;grid-column:1/4;font-weight:600}
tbody td:nth-child(5){order:1;text-align:right}
tbody td:nth-child(4){order:3;color:var(--soft)}
tbody td:nth-child(6){order:4;color:var(--soft)}
tbody td:nth-child(7){order:5;color:var(--soft)}
tbody td:nth-child(6)::before{content:"tried "}
tbody td:nth-child(6)::after{content:"\\d7"}
tbody td:nth-child(7)::after{content:" s"}
tbody td:nth-child(8){order:6;grid-column:1/-1}
}
@media print{
main{max-width:none;padding:0}
body{font-size:10pt}
table{font-size:8pt}
thead{break-inside:avoid}
form,th button{display:none}
.rooms li,tr{content-visibility:visible;break-inside:avoid}
.axis{position:static}
h2{break-after:avoid}
details::details-content{content-visibility:visible;height:auto}
}
"""

SCRIPT = """
(() => {
const form = document.getElementById("filter");
if (!form) return;
const body = document.querySelector("#outcomes tbody");
const rows = [...body.rows].map(row => ({row, text: row.textContent.toLowerCase()}));
const show = () => {
  const words = form.words.value.toLowerCase().split(/\\s+/);
  let shown = 0;
  for (const {row, text} of rows) {
    const wanted = form.outcome.value;
    row.hidden = (wanted && row.className !== wanted) || !words.every(w => text.includes(w));
    shown += !row.hidden;
  }
  form.querySelector("output").value = shown === rows.length ? "" : `${shown} of ${rows.length}`;
};
const compare = new Intl.Collator(undefined, {numeric: true}).compare;
const heads = [...document.querySelectorAll("#outcomes thead th")];
heads.forEach((head, column) => {
  const button = document.createElement("button");
  button.ariaLabel = `Sort by ${head.textContent}`;
  head.append(button);
  button.addEventListener("click", () => {
    const turn = head.ariaSort === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.ariaSort = turn > 0 ? "ascending" : "descending";
    const key = ({row}) => {
      const cell = row.cells[column];
      return cell.querySelector("data")?.value ?? cell.textContent;
    };
    const sorted = rows.map(entry => [key(entry), entry.row]);
    sorted.sort(([a], [b]) => turn * compare(a, b));
    body.append(...sorted.map(([, row]) => row));
  });
});
form.addEventListener("input", show);
form.addEventListener("submit", event => event.preventDefault());
form.hidden = false;
show();
})();
"""
