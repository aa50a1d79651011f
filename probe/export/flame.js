// The program of the page that probe/export/flame_page.py writes.  Invariant: it shows the data of the page and loads
// nothing; a time is never rounded away: what is too narrow to be drawn is drawn together.
"use strict";
const ROW = 20, NARROW = 0.7, FONT = "12px ui-monospace, Menlo, Consolas, monospace";
const at = id => document.getElementById(id);
const file = JSON.parse(at("profile").textContent);
const {frames, phases, sides} = file, [, before] = sides, ranks = file.ranks.length > 1 ? file.ranks : [];
const main = document.querySelector("main"), canvas = document.querySelector("canvas");
const perStep = sides.every(cells => cells.ranks.every(rank => cells.steps[rank]));  // whether steps are known
const view = {ranks: "each", phase: -1, side: 0, by: perStep ? "step" : "share", root: 0, zoom: null, query: ""};
let tree, drawn, hits;  // of what is chosen: the calls with their times, the boxes of each row, the frames searched for

// ---- the tree: nodes, each after its parent.  place: where the nodes of the file are in it; top: whose child of the
// root a node is below.

function sideBySide() {
  const top = file.parent.map((parent, node) => node);
  file.parent.forEach((parent, node) => { if (parent > 0) top[node] = top[parent]; });
  return {parent: file.parent, frame: file.frame, top, place: file.parent.map((parent, node) => node)};
}

/** With the calls of all ranks as one. */
function together() {
  const known = new Map(), parent = [0], frame = [0], place = [0];
  for (let node = 1; node < file.parent.length; node++) {
    const above = place[file.parent[node]], key = above * frames.length + file.frame[node];
    if (file.parent[node] === 0) { place[node] = 0; continue; }  // a rank
    if (!known.has(key)) { known.set(key, parent.length); parent.push(above); frame.push(file.frame[node]); }
    place[node] = known.get(key);
  }
  return {parent, frame, top: parent.map(() => 0), place};
}

/** Seconds and samples of each node: its own, and with all below it. */
function weigh(cells, of, phase) {
  const own = new Float64Array(of.parent.length), samples = new Float64Array(of.parent.length);
  cells.node.forEach((node, place) => {
    if (phase >= 0 && cells.phase[place] !== phase) return;
    own[of.place[node]] += cells.seconds[place];
    samples[of.place[node]] += cells.samples[place];
  });
  const total = own.slice();
  for (let node = total.length - 1; node > 0; node--) {
    total[of.parent[node]] += total[node];
    samples[of.parent[node]] += samples[node];
  }
  return {own, total, samples};
}

/** The children of each node, in one array that `first` divides; they are sorted when they are first drawn. */
function family(parent) {
  const first = new Int32Array(parent.length + 2), all = new Int32Array(parent.length);
  for (let node = 1; node < parent.length; node++) first[parent[node] + 2]++;
  for (let node = 2; node < first.length; node++) first[node] += first[node - 1];
  for (let node = 1; node < parent.length; node++) all[first[parent[node] + 1]++] = node;
  return {first, all, sorted: new Uint8Array(parent.length)};
}

function childrenOf(node) {
  const {first, all, sorted} = tree.family, children = all.subarray(first[node], first[node + 1]);
  const {total} = tree.times[view.side];
  if (!sorted[node] && (node || view.ranks !== "each" || !ranks.length)) children.sort((one, other) => total[other] - total[one]);
  sorted[node] = 1;
  return children;
}

const trees = {};
function choose() {
  const base = view.ranks === "together" ? trees.together ??= together() : trees.each ??= sideBySide();
  base.all ??= sides.map(cells => weigh(cells, base, -1).total);  // of all phases
  tree = {...base, family: family(base.parent), times: sides.map(cells => weigh(cells, base, view.phase))};
  const isChosen = (parent, node) => node && !parent && called(node) === `rank ${view.ranks}`;
  view.root = Math.max(0, tree.parent.findIndex(isChosen));
  view.zoom ??= view.root;
  search();
}

// ---- figures.  A difference is one of seconds per step, or of shares of the time: if the steps of a side are not known,
// or if all of a job has become slower.  What two standard errors of so many samples explain is no difference.

const called = node => node ? frames[tree.frame[node]] : "all";

/** What a node's seconds are divided by to compare them: the steps, or the seconds, of its rank or of all. */
function unit(side, node) {
  const top = tree.top[node], rank = ranks.length && top ? called(top).slice(5) : null;
  if (view.by === "share") return tree.all[side][rank === null ? 0 : top];
  const steps = sides[side].steps;
  return rank === null ? Object.values(steps).reduce((sum, each) => sum + each, 0) : steps[rank] ?? 0;
}

function difference(node) {
  const [is, was] = [0, 1].map(side => tree.times[side].total[node] / unit(side, node));
  const error = Math.hypot(...[is, was].map((value, side) =>
    value ? value / Math.sqrt(tree.times[side].samples[node]) : 0));
  return {is, was, more: is - was, chance: Math.abs(is - was) < 2 * error};
}

const percent = share => `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)} %`;
const signed = text => text.startsWith("-") ? text.replace("-", "−") : `+${text}`;
function time(s) {
  const size = Math.abs(s);
  return size >= 1 ? `${s.toFixed(2)} s` : !size ? "0 s" : size >= 1e-3 ? `${(s * 1e3).toFixed(1)} ms` : `${(s * 1e6).toFixed(0)} µs`;
}

function figures(node) {
  const {own, total, samples} = tree.times[view.side], all = total[view.root], share = s => percent(all && s / all);
  return `total ${time(total[node])} (${share(total[node])}), self ${time(own[node])} (${share(own[node])}), ` +
    `${samples[node].toLocaleString("en")} samples` +
    (perStep && !before ? `, ${time(total[node] / unit(0, node))} per step` : "");
}

function compared(node) {
  const {is, was, more, chance} = difference(node), isTime = view.by === "step", told = isTime ? time : percent;
  if (!(is >= 0 && was >= 0)) return `This rank is not in ${is >= 0 ? before.name : "this profile"}.`;
  const points = isTime ? signed(time(more)) : `${signed((100 * more).toFixed(2))} points`;
  const change = was && is ? `, ${signed((100 * more / was).toFixed(0))} %` : "";
  return `${told(is)}${isTime ? " per step" : " of the time"}, before ${told(was)}: ` +
    (chance ? `${points}${change}, which may be chance` : `${points}${change}`);
}

// ---- drawing: an icicle, of the boxes that are wide enough to see.

function layOut() {
  const {total} = tree.times[view.side], width = main.clientWidth, path = [];
  for (let node = view.zoom; node !== view.root; node = tree.parent[node]) path.unshift(node);
  if (view.zoom !== view.root) path.unshift(view.root);
  drawn = path.slice(0, -1).map(node => [{node, x: 0, width, above: true}]);
  const todo = total[view.zoom] > 0 ? [{node: view.zoom, x: 0, width, row: drawn.length}] : [];
  while (todo.length) {
    const box = todo.pop(), children = childrenOf(box.node), scale = box.width / total[box.node];
    (drawn[box.row] ??= []).push(box);
    let x = box.x, left = 0;
    for (const node of children) {
      const wide = total[node] * scale;
      if (wide < NARROW) { left += total[node]; continue; }
      todo.push({node, x, width: wide, row: box.row + 1});
      x += wide;
    }
    if (left * scale >= NARROW) (drawn[box.row + 1] ??= []).push({node: -1, left, x, width: left * scale});
  }
  at("space").style.height = `${Math.max(drawn.length * ROW, 1)}px`;
  draw();
}

/** A package has one of the cold colours, a file that is in none, as the job's own are, one of the warm ones. */
function hue(name) {
  const [, file = ""] = name.split(" ("), [home] = file.split("/");
  let hash = 0;
  for (const letter of home) hash = (hash * 31 + letter.charCodeAt(0)) % 65521;
  if (!file || file.startsWith("<")) return "#c3c9d4";
  return home === file ? `hsl(${20 + hash % 5 * 7} 85% 76%)` : `hsl(${100 + hash % 13 * 15} 45% 78%)`;
}

function colour(node) {
  if (node < 0) return "#9aa2b1";
  if (!before) return hue(called(node));
  const {is, was, more, chance} = difference(node);
  if (chance || !more || !(is >= 0 && was >= 0)) return "#c6cad2";
  const much = Math.min(1, 0.25 + 1.5 * Math.abs(more) / (is + was));
  return `hsl(${more > 0 ? 8 : 216} ${55 + 35 * much}% ${88 - 26 * much}%)`;
}

function draw() {
  const pen = canvas.getContext("2d"), width = main.clientWidth, height = main.clientHeight;
  const ratio = window.devicePixelRatio || 1, text = getComputedStyle(document.body).color;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  pen.scale(ratio, ratio);
  pen.font = FONT;
  pen.textBaseline = "middle";
  const ink = {pen, letter: pen.measureText("m").width, text};
  for (let row = Math.floor(main.scrollTop / ROW); row < drawn.length && row * ROW < main.scrollTop + height; row++)
    for (const box of drawn[row] ?? []) drawBox(ink, box, row * ROW - main.scrollTop);
}

function drawBox({pen, letter, text}, box, y) {
  const faded = box.above || (view.query && !(box.node > 0 && hits[tree.frame[box.node]]));
  pen.globalAlpha = faded ? 0.45 : 1;
  pen.fillStyle = colour(box.node);
  pen.fillRect(box.x, y, Math.max(0.5, box.width - (box.width > 3 ? 1 : 0)), ROW - 1);
  pen.globalAlpha = 1;
  const room = Math.floor((box.width - 8) / letter);
  if (room < 3) return;
  const name = box.node < 0 ? "…" : called(box.node);
  pen.fillStyle = faded ? text : "#16181d";
  pen.fillText(name.length > room ? `${name.slice(0, room - 1)}…` : name, box.x + 4, y + ROW / 2);
}

// ---- what the user does

function search() {
  const query = view.query.toLowerCase(), inside = new Uint8Array(tree.parent.length), {total} = tree.times[view.side];
  hits = frames.map(name => query !== "" && name.toLowerCase().includes(query));
  let seconds = 0;
  for (let node = 1; node < inside.length; node++) {
    if (!inside[tree.parent[node]] && hits[tree.frame[node]] && isBelow(node)) seconds += total[node];
    inside[node] = inside[tree.parent[node]] || hits[tree.frame[node]];
  }
  at("matched").textContent = query ? `${percent(seconds / (total[view.root] || 1))} matches` : "";
  layOut();
}

const isBelow = node => !view.root || tree.top[node] === view.root;

function under(event) {
  const {left, top} = main.getBoundingClientRect();
  const x = event.clientX - left, row = Math.floor((event.clientY - top + main.scrollTop) / ROW);
  return (drawn[row] ?? []).find(box => box.x <= x && x < box.x + box.width);
}

function tell(box) {
  at("called").textContent = !box ? "" : box.node < 0 ? "… more calls, too narrow to be drawn" : called(box.node);
  at("figures").textContent = !box ? "Click a call to zoom in, one above to zoom out; Escape shows all." :
    box.node < 0 ? time(box.left) : figures(box.node);
  at("more").textContent = box && box.node >= 0 && before ? compared(box.node) : "";
}

function zoom(node) {
  view.zoom = node;
  layOut();
  main.scrollTop = 0;
}

function options(id, choices, change) {
  const select = at(id);
  for (const [value, text] of choices) select.add(new Option(text, value));
  select.parentElement.hidden = choices.length < 2;
  select.onchange = () => { change(select.value); choose(); };
}

document.title = file.title;
document.querySelector("h1").textContent = file.title;
at("about").textContent = file.about.join("\n");
options("ranks", ranks.length ? [["each", "side by side"], ["together", "together"], ...ranks.map(rank => [rank, `rank ${rank}`])]
  : [], value => { view.ranks = value; view.zoom = null; });
options("phase", phases.length < 2 ? [] : [[-1, "all"], ...phases.map((name, place) => [place, name ?? "not known"])],
  value => { view.phase = Number(value); });
options("side", before ? [[0, "this profile"], [1, before.name]] : [], value => { view.side = Number(value); });
options("by", before && perStep ? [["step", "time per step"], ["share", "share of the time"]] : [],
  value => { view.by = value; });
if (before && ranks.length) at("ranks").value = view.ranks = "together";
if (before) {
  const shades = [["hsl(216 90% 62%)", "less"], ["hsl(8 90% 62%)", `more than in ${before.name}`],
    ["#c6cad2", "as much, or chance"]];
  for (const [shade, text] of shades)
    at("legend").append(Object.assign(document.createElement("i"), {style: `background: ${shade}`}), text);
  at("legend").hidden = false;
}
at("search").oninput = () => { view.query = at("search").value; search(); };
at("out").onclick = () => zoom(view.root);
document.querySelector("form").onsubmit = event => event.preventDefault();
document.onkeydown = event => { if (event.key === "Escape") zoom(view.root); };
main.onscroll = draw;
canvas.onmousemove = event => tell(under(event));
canvas.onmouseleave = () => tell();
canvas.onclick = event => { const box = under(event); if (box && box.node >= 0) zoom(box.node); };
window.onresize = layOut;
matchMedia("(prefers-color-scheme: dark)").onchange = draw;
choose();
tell();
