// Lines over time (uPlot), the task stream and the shard map (canvas).
import { $, colour, element, lasting, number } from "./words.js";

const lines = {};

// Ticks of time, in seconds.
const TIMES = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 432800, 864000];

// A point stands in the middle of its bin.
export function drawLine(id, label, points, slot, fromZero = false) {
  const xs = points.map((_, i) => (i + 0.5) * slot), box = $(id);
  if (!lines[id]) {
    const axis = () => ({ stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" });
    const values = (_, ticks) => ticks.map((tick) => number(tick));
    lines[id] = new uPlot({
      width: Math.max(200, box.clientWidth), height: 190, legend: { show: false }, cursor: { drag: { x: false } },
      scales: { x: { time: false }, y: fromZero ? { range: (_, low, high) => [0, (high || 1) * 1.1] } : {} },
      series: [{}, { label, stroke: () => colour("--accent"), width: 1.8, spanGaps: true, points: { show: points.length < 2 } }],
      axes: [{ ...axis(), size: 28, incrs: TIMES, values: (_, ticks) => ticks.map((tick) => (tick ? lasting(tick) : "0")) }, { ...axis(), size: 62, values }],
    }, [xs, points], box);
    new ResizeObserver(() => lines[id].setSize({ width: Math.max(200, box.clientWidth), height: 190 })).observe(box);
  }
  lines[id].setData([xs, points]);
}

export function redrawLines() {
  for (const line of Object.values(lines)) line.redraw();
}

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width];
}

function lane(rank, box) {
  const made = element("div", "", "lane"), right = element("div");
  const canvas = element("canvas"), share = element("div", "", "share");
  canvas.setAttribute("role", "img");
  made.append(element("span", `worker ${rank}`), right);
  right.append(canvas, share);
  made.dataset.rank = rank;
  box.append(made);
  return made;
}

// The last steps of every worker on one axis, and below each where all its time went.
export function drawStream(spans, workers, phases) {
  const box = $("stream"), ranks = workers.map((worker) => worker.rank);
  let axis = box.querySelector(".axis");
  if (!axis) { axis = element("p", "", "axis"); axis.append(element("span"), element("span")); box.append(axis); }
  const known = ranks.map((rank) => spans[rank] || []).filter((of) => of.length);
  const end = Math.max(0, ...known.map((of) => of[of.length - 1][2]));
  const begin = known.length ? Math.max(...known.map((of) => of[0][1])) : 0;
  const from = end > begin ? begin : end - 1, paints = phases.map((_, i) => colour(`--phase-${i}`));
  for (const worker of workers) {
    const made = box.querySelector(`[data-rank="${worker.rank}"]`) || lane(worker.rank, box);
    const canvas = made.querySelector("canvas"), [pen, width] = prepare(canvas, 24);
    const scale = width / (end - from || 1);
    for (const [kind, start, stop] of spans[worker.rank] || []) {
      if (stop < from) continue;
      pen.fillStyle = paints[kind];
      pen.fillRect((start - from) * scale, 0, Math.max(0.5, (stop - start) * scale), 24);
    }
    drawShare(made, worker, phases, canvas);
  }
  box.append(axis);
  axis.children[0].textContent = known.length ? lasting(from) : "no events yet";
  axis.children[1].textContent = known.length ? `${lasting(end)} since the first step; below: of all time` : "";
}

function drawShare(made, worker, phases, canvas) {
  const share = made.querySelector(".share"), all = phases.reduce((sum, phase) => sum + worker.seconds[phase], 0) || 1;
  while (share.children.length < phases.length) share.append(element("span"));
  const told = [];
  phases.forEach((phase, i) => {
    const part = worker.seconds[phase] / all, bar = share.children[i];
    bar.style.width = `${100 * part}%`;
    bar.style.background = `var(--phase-${i})`;
    if (part >= 0.005) told.push(`${phase} ${Math.round(100 * part)} %`);
  });
  share.title = told.join(", ");
  canvas.setAttribute("aria-label", `worker ${worker.rank}: ${told.join(", ")}`);
}

const SERVERS = 8; // colours, as the lines of plans have them

function drawKey(box, servers, paint) {
  let key = box.querySelector("ul");
  if (!key) { key = element("ul", "", "legend"); box.prepend(key); }
  key.replaceChildren(...servers.map((server, i) => {
    const made = element("li"), mark = element("i");
    mark.style.background = paint(i);
    made.append(mark, server.name);
    return made;
  }));
}

// A cell for each shard: on top who is primary, below each copy; a hole is a copy that is missing.
export function drawShards(shards, servers) {
  const box = $("shards");
  if (!shards) { box.replaceChildren(); return; }
  let canvas = box.querySelector("canvas"), words = box.querySelector("p");
  if (!canvas) {
    canvas = element("canvas"); words = element("p", "", "quiet");
    canvas.setAttribute("role", "img");
    box.replaceChildren(canvas, words);
  }
  const columns = 64, rows = Math.ceil(shards.count / columns), high = 6 + 4 * shards.replicas, height = rows * (high + 2);
  canvas.style.height = `${height}px`;
  const [pen, width] = prepare(canvas, height), wide = width / columns;
  const paints = Array.from({ length: SERVERS }, (_, i) => colour(`--server-${i}`));
  const paint = (server, part = 255) => paints[server % SERVERS] + part.toString(16);
  let at = 0;
  for (const [count, owner, copies, joining] of shards.runs) {
    const first = servers[owner] && servers[owner].state === "dead" ? colour("--bad") : paint(owner);
    const below = [...copies.map((server) => paint(server, 190)), ...joining.map((server) => paint(server, 75))].slice(0, shards.replicas);
    for (let shard = at; shard < at + count; shard += 1) {
      const x = (shard % columns) * wide, y = Math.floor(shard / columns) * (high + 2);
      pen.fillStyle = first;
      pen.fillRect(x, y, wide - 1, 6);
      below.forEach((fill, i) => { pen.fillStyle = fill; pen.fillRect(x, y + 6 + 4 * i, wide - 1, 4); });
    }
    at += count;
  }
  drawKey(box, servers, paint);
  const copies = shards.replicas ? "the primary on top, copies below (pale: in the making, none: missing)" : "coloured by primary; there are no copies";
  words.textContent = `${number(shards.count)} shards, ${copies}`;
  canvas.setAttribute("aria-label", `${words.textContent}: ${servers.map((server) => `${server.name} is primary of ${server.primary}`).join(", ")}`);
}

export function drawBars(box, pairs, empty) {
  const most = Math.max(1, ...pairs.map(([, count]) => count));
  box.replaceChildren(...pairs.map(([at, count]) => {
    const made = element("div", "", "bar"), bar = element("b"), hold = element("span");
    bar.style.width = `${(100 * count) / most}%`;
    hold.append(bar);
    made.append(element("span", String(at)), hold, element("span", number(count)));
    return made;
  }));
  if (!pairs.length) box.append(element("p", empty, "quiet"));
}

