// Reads the stream and shows it. All state is here, and none of it grows without bound.
import { drawBars, drawLine, drawShards, drawStream, redrawLines } from "./charts.js";
import { $, bytes, clock, element, fill, lasting, number, seconds } from "./words.js";

const SPANS = 240, HAPPENED = 200;
const NAMES = { compute: "compute", push: "synchronise", wait: "wait", update: "pull, update", data: "data", evaluate: "evaluate" };
// What is said of the store before it has answered, by what the dashboard waits for.
const AWAITED = { stream: "waiting for the dashboard's first answer", run: "waiting for the run to say whether it has a store", store: "asking the store", ended: "the run has ended, and its store with it", nothing: "this run has no store" };
const state = { run: null, store: null, awaited: "stream", storeHappened: [], series: { slot_s: 0.25, unit: "samples/s", rate: [], loss: [] }, spans: {}, happened: [], speeds: {}, trouble: "", paused: false, dirty: new Set() };

if (location.search) history.replaceState(null, "", location.pathname); // the token is used up: it need not be seen

// --- the stream ---

function connect() {
  const stream = new EventSource("stream");
  stream.addEventListener("snapshot", (message) => { begin(JSON.parse(message.data)); connected(); });
  stream.addEventListener("news", (message) => { take(JSON.parse(message.data)); connected(); });
  stream.onopen = connected;
  stream.onerror = () => {
    if (state.run && state.run.ended) { stream.close(); connected(); return; } // its dashboard ends with it: what was seen stays
    say(stream.readyState === EventSource.CLOSED ? "closed: start gradtide dashboard again" : "connection lost, trying again", true);
  };
}

function say(text, lost = false) {
  $("connection").textContent = text;
  $("connection").classList.toggle("lost", lost);
}

const connected = () => say(state.paused ? "paused" : state.run && state.run.ended ? "ended" : "live");

function begin(all) {
  Object.assign(state, { run: null, store: null, spans: {}, happened: [], storeHappened: [], series: { slot_s: 0.25, unit: "samples/s", rate: [], loss: [] } });
  take(all);
}

function take(news) {
  if (news.run) takeRun(news.run);
  if (news.store) { state.store = Object.assign(state.store || {}, news.store); state.dirty.add("store"); }
  if (news.awaited) { state.awaited = news.awaited; state.dirty.add("store"); }
  if (news.store_happened && news.store_happened.length) {
    state.storeHappened = state.storeHappened.concat(news.store_happened).slice(-HAPPENED);
    state.dirty.add("happened");
  }
  if (news.trouble !== undefined) { state.trouble = news.trouble; state.dirty.add("store"); }
  if (news.picture) { $("picture").src = `topology.svg?v=${news.picture}`; $("picture").hidden = false; }
  show();
}

function takeRun(run) {
  if (run.series) takeSeries(run.series);
  for (const [rank, spans] of Object.entries(run.spans || {})) state.spans[rank] = (state.spans[rank] || []).concat(spans).slice(-SPANS);
  if (run.happened && run.happened.length) { state.happened = state.happened.concat(run.happened).slice(-HAPPENED); state.dirty.add("happened"); }
  if (run.links) noteSpeeds(run.links);
  state.run = Object.assign(state.run || {}, run, { series: undefined, spans: undefined, happened: undefined });
  state.dirty.add("run");
}

function takeSeries(series) {
  const known = state.series, keep = series.slot_s === known.slot_s ? series.from : 0;
  state.series = { slot_s: series.slot_s, unit: series.unit, rate: known.rate.slice(0, keep).concat(series.rate), loss: known.loss.slice(0, keep).concat(series.loss) };
}

function noteSpeeds(links) {
  const now = performance.now() / 1000;
  for (const [from, to, size] of links) {
    const name = `${from} → ${to}`, known = state.speeds[name];
    if (!known) state.speeds[name] = { at: now, size, speed: null };
    else if (now - known.at >= 1) state.speeds[name] = { at: now, size, speed: (size - known.size) / (now - known.at) };
  }
}

// --- the page ---

let waiting = false;

function show() {
  if (waiting || state.paused) return;
  waiting = true;
  const draw = () => { waiting = false; redraw(); };
  if (document.hidden) setTimeout(draw, 1000); else requestAnimationFrame(draw);
}

function redraw() {
  if (state.paused) return;
  if (state.dirty.has("run")) showRun();
  if (state.dirty.has("store") || state.dirty.has("run")) { showHealth(); showNumbers(); }
  if (state.dirty.has("store")) showStore();
  if (state.dirty.has("happened")) showHappened();
  state.dirty.clear();
}

// How the run ended, if it has; what its store complained about is over then.
function ending(run) {
  const [at, code] = run.ended;
  const when = at ? ` at ${clock(at)}${run.began_unix_s ? `, after ${lasting(at - run.began_unix_s)}` : ""}` : "";
  return code ? `the run ended with exit code ${code}${when}` : `the run has ended${when}`;
}

function showHealth() {
  const over = state.run && state.run.ended, store = over ? null : state.store, failed = over && over[1] ? [ending(state.run)] : [];
  const wrong = [...(state.trouble ? [state.trouble] : []), ...failed, ...(store ? store.complaints : [])];
  const notes = store ? store.notes : [], box = $("health"), list = element("ul");
  const calm = over ? ending(state.run) : store ? "all is well" : AWAITED[state.awaited];
  const words = JSON.stringify([wrong, notes, calm]);
  if (box.dataset.words === words) return;
  box.dataset.words = words;
  box.classList.toggle("bad", wrong.length > 0);
  box.classList.toggle("over", !wrong.length && !!over);
  for (const line of wrong) list.append(element("li", line));
  for (const line of notes) list.append(element("li", line, "note"));
  box.replaceChildren(...(wrong.length ? [] : [element("p", calm)]), list);
}

function showNumbers() {
  const { run, store, series } = state, workers = run ? run.workers : [], last = workers.filter((worker) => worker.step !== null);
  const over = run && run.ended, rates = series.rate.filter((rate) => rate !== null).slice(over ? 0 : -2), losses = series.loss.filter((loss) => loss !== null);
  const found = [
    [`${series.unit} ${over ? "on average" : "now"}`, rates.length ? number(rates.reduce((a, b) => a + b, 0) / rates.length) : "–"],
    ["loss", losses.length ? number(losses[losses.length - 1], 4) : "–"],
    ["epoch", last.length ? String(Math.max(...last.map((worker) => worker.epoch))) : "–"],
    ["step", last.length ? number(Math.max(...last.map((worker) => worker.step))) : workers.length ? number(Math.max(...workers.map((worker) => worker.steps))) : "–"],
    ["samples", last.length ? number(last.reduce((sum, worker) => sum + worker.samples, 0)) : "–"],
    ["workers", String(workers.length || (store ? store.workers.filter((worker) => worker.alive).length : 0))],
  ];
  if (store && !over) {
    const alive = store.servers.filter((server) => server.state === "alive" || server.state === "leaving").length;
    found.push(["servers alive", `${alive} of ${store.servers.length}`], ["members lost", number(Object.values(store.failures).reduce((a, b) => a + b, 0))]);
  }
  $("numbers").replaceChildren(...found.map(([name, value]) => {
    const made = element("div");
    made.append(element("dt", name), element("dd", value));
    return made;
  }));
}

function showRun() {
  const { run, series } = state;
  $("title").textContent = run.title || "";
  if (run.title) document.title = `${run.title} – gradtide`;
  $("rate-name").textContent = series.unit === "steps/s" ? "Steps/s" : "Samples/s";
  drawLine("rate", series.unit, series.rate, series.slot_s, true);
  drawLine("loss", "loss", series.loss, series.slot_s);
  const phases = run.phases || Object.keys(NAMES);
  if (!$("legend").children.length) $("legend").append(...phases.map((phase, i) => {
    const made = element("li"), mark = element("i");
    mark.style.background = `var(--phase-${i})`;
    made.append(mark, NAMES[phase] || phase);
    return made;
  }));
  drawStream(state.spans, run.workers, phases);
  fill($("links"), ["link", ...(run.ended ? [] : ["now"]), "in all"], run.links.map(([from, to, size]) => {
    const name = `${from} → ${to}`, known = state.speeds[name], now = known && known.speed !== null ? `${bytes(known.speed)}/s` : "–";
    return [name, ...(run.ended ? [] : [now]), bytes(size)];
  }), "nothing is known of who sends to whom");
  drawBars($("staleness"), binned(run.staleness), "no values were pulled in rounds, or in windows of local steps");
  fill($("comparison"), ["what", "predicted", "measured", "by"], run.comparison.map((row) => [
    row.what, seconds(row.predicted_s), seconds(row.measured_s), [`${row.way}${row.links ? `, predicted on ${row.links} links` : ", without a prediction"}`, "words"],
  ]), "no step has ended yet");
  fill($("workers"), ["worker", "step", "samples/s", "loss", ...phases.map((phase) => NAMES[phase] || phase), "sent"], run.workers.map((worker) => [
    `worker ${worker.rank}`, number(worker.step === null ? worker.steps : worker.step), number(worker.rate), number(worker.loss, 4), ...phases.map((phase) => seconds(worker.seconds[phase])), bytes(worker.wire_bytes),
  ]), "no worker has said anything yet");
}

function binned(pairs) {
  const found = new Map();
  for (const [at, count] of pairs) {
    const name = at < 10 ? String(at) : "10 +";
    found.set(name, (found.get(name) || 0) + count);
  }
  return [...found];
}

function showStore() {
  const { store } = state;
  if (!store) { fill($("servers"), ["server"], [], AWAITED[state.awaited]); return; }
  const seen = state.run && state.run.ended ? "last state" : "state";
  fill($("servers"), ["server", seen, "primary", "copies", "joining", "bytes", "lag, entries"], store.servers.map((server) => [
    server.name, [server.state, server.state === "alive" ? "good-word" : "bad-word"], number(server.primary), number(server.copies), number(server.joining), bytes(server.bytes),
    Object.entries(server.lag).map(([name, lag]) => `${name} ${number(lag)}`).join(", ") || "none",
  ]), "no server has come yet");
  drawShards(store.shards, store.servers);
}

function showHappened() {
  const all = state.happened.concat(state.storeHappened).sort((a, b) => b.unix_s - a.unix_s).slice(0, HAPPENED);
  $("happened").replaceChildren(...all.map((one) => {
    const made = element("li", "", one.kind), time = element("time", clock(one.unix_s));
    time.dateTime = new Date(one.unix_s * 1000).toISOString();
    made.append(time, element("span", one.who, "who"), element("span", one.text, "text"));
    return made;
  }));
}

// --- keys, light and dark ---

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  redrawLines();
  ["run", "store", "happened"].forEach((what) => (what !== "run" || state.run) && state.dirty.add(what));
  show();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const otherTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
const pause = () => {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", String(state.paused));
  connected();
  show();
};
const help = () => {
  $("help").hidden = !$("help").hidden;
  $("keys").setAttribute("aria-expanded", String(!$("help").hidden));
};
$("pause").onclick = pause;
$("theme").onclick = otherTheme;
$("keys").onclick = help;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { p: pause, t: otherTheme, "?": help }[event.key];
  if (act) act();
  const panel = document.querySelectorAll("main > section")[Number(event.key) - 1];
  if (panel && event.key.trim() !== "") { panel.focus(); panel.scrollIntoView({ block: "start" }); }
});
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
setTheme(dark.matches ? "dark" : "light");
state.dirty.add("store");
connect();
