// What the reader does: look closer, move, point, jump.
const whole = { from: 0, to: facts.window };
const LEAST = 200; // nanoseconds
const status = document.getElementById("status");
const tip = document.getElementById("tip");
const frame = document.getElementById("frame");
const shown = document.querySelector("#overview .shown");
const marks = [...facts.late, ...facts.suspects].sort((a, b) => a.at - b.at);
let view = { ...whole };
let lanes = [];
let all = [];
let chosen = null;
let pointer = null;
let span = null; // the one that the keyboard is at: { lane, row, index }
let waiting = false;

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw(all, view, { chosen, pointer, span });
    shown.setAttribute("x", (facts.columns * view.from) / facts.window);
    shown.style.display = view.to - view.from < facts.window ? "" : "none";
    shown.setAttribute("width", (facts.columns * (view.to - view.from)) / facts.window);
    frame.dataset.from = view.from;
    frame.dataset.to = view.to;
    const step = (view.to - view.from) / 100;
    document.getElementById("range").textContent =
      `${moment(view.from, step)} to ${moment(view.to, step)} ms (${length(view.to - view.from)} ` +
      `of ${length(facts.window)})`;
  });
}

function show(from, to) {
  const long = Math.min(facts.window, Math.max(LEAST, to - from));
  const start = Math.min(facts.window - long, Math.max(0, (from + to - long) / 2));
  view = { from: start, to: start + long };
  redraw();
}

function zoom(factor, around = (view.from + view.to) / 2) {
  const long = Math.min(facts.window, Math.max(LEAST, (view.to - view.from) * factor));
  const share = (around - view.from) / (view.to - view.from);
  const from = Math.min(facts.window - long, Math.max(0, around - share * long));
  view = { from, to: from + long };
  redraw();
}

function move(share) {
  const by = share * (view.to - view.from);
  const from = Math.min(facts.window - (view.to - view.from), Math.max(0, view.from + by));
  show(from, from + view.to - view.from);
}

function say(text) {
  status.textContent = text;
}

function described(one) {
  if (one.kind) return `${one.kind} on ${facts.cpu} ${one.vcpu} at ${moment(one.at)} ms: ${one.text}`;
  const parts = PARTS.filter((part) => one.parts[part.index] >= 0.005 * one.latency)
    .map((part) => `${percent(one.parts[part.index], one.latency)} ${part.text}`);
  return `${one.task} on ${facts.cpu} ${one.vcpu}, due at ${moment(one.at)} ms, came ` +
    `${length(one.latency)} late: ${parts.join(", ")}` +
    (one.culprit ? `; ${one.culprit} had the CPU for the longest of it` : "");
}

function jump(one) {
  chosen = one;
  span = null;
  const long = Math.max(one.end - one.at, 1e4);
  show(one.at - 1.5 * long, one.end + 1.5 * long);
  say(`${marks.indexOf(one) + 1} of ${marks.length}: ${described(one)}`);
}

function next(step) {
  if (!marks.length) return say("Nothing is marked in this trace.");
  const middle = (view.from + view.to) / 2;
  const after = marks.findIndex((one) => one.at > middle);
  const beside = step > 0 ? (after < 0 ? 0 : after) : (after < 0 ? marks.length : after) - 1;
  const at = chosen ? marks.indexOf(chosen) + step : beside;
  jump(marks[(at + marks.length) % marks.length]);
}

function spanText(lane, index) {
  const state = STATES[lane.category[index]];
  const detail = lane.details[lane.detail[index]];
  const long = lane.end[index] - lane.start[index];
  const text = [lane.title, detail ? `${state.text}: ${detail}` : state.text];
  text.push(`from ${moment(lane.start[index], 1)} ms, for ${length(long)}`);
  if (lane.side === "guest" && facts.clock_error !== null) {
    text.push(`by the guest's clock, ± ${length(facts.clock_error)}`);
  }
  if (facts.grain && long < 2 * facts.grain) text.push("joined with its neighbours");
  return text;
}

// Of a place that many spans share, what most of its time went to.
function crowdText(lane, first, from, to) {
  const times = new Map();
  let count = 0;
  for (let i = first; i < lane.count && lane.start[i] < to; i++, count++) {
    const long = Math.min(to, lane.end[i]) - Math.max(from, lane.start[i]);
    times.set(lane.category[i], (times.get(lane.category[i]) ?? 0) + long);
  }
  const text = [...times].sort((a, b) => b[1] - a[1]).slice(0, 5)
    .map(([category, time]) => `${percent(time, to - from)} ${STATES[category].text}`);
  return [lane.title, `${count} spans in ${length(to - from)}:`, ...text];
}

function textAt(x, y) {
  const row = all.find((one) => y >= one.y && y < one.y + one.height);
  const scale = (view.to - view.from) / canvas.clientWidth;
  const at = view.from + x * scale;
  const gap = facts.gaps.find((one) => at >= one.at && at <= one.end);
  if (gap && row && isHidden(row)) return [`${gap.count} lost events`, "nothing is known here"];
  if (row?.kind === "lane") {
    const from = at - scale / 2;
    const index = firstAfter(row.lane, from);
    if (index < row.lane.count && row.lane.start[index] < at + scale / 2) {
      const crowd = index + 1 < row.lane.count && row.lane.end[index + 1] < at + scale / 2;
      return crowd
        ? crowdText(row.lane, index, from, at + scale / 2) : spanText(row.lane, index);
    }
    return [row.lane.title, "no events say what went on here"];
  }
  const near = nearest(row, x);
  return near ? [described(near)] : null;
}

function nearest(row, x) {
  const found = row?.kind === "late" ? row.late : row?.kind === "suspects" ? row.suspects : [];
  const scale = canvas.clientWidth / (view.to - view.from);
  let best = null;
  for (const one of found) {
    const low = (one.at - view.from) * scale;
    const high = Math.max(low + (one.letter ? 12 : 0), (one.end - view.from) * scale);
    const away = Math.max(low - x, x - high, 0);
    if (away <= 4 && !(best && best.end - best.at > one.end - one.at)) best = one;
  }
  return best;
}

function showTip(lines, x, y) {
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.map((text, number) => {
    const line = document.createElement(number ? "span" : "b");
    line.textContent = text;
    return line;
  }));
  const left = Math.min(x + 14, frame.clientWidth - tip.offsetWidth - 2);
  const below = y + 18 + tip.offsetHeight < all.height;
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${below ? y + 18 : Math.max(0, y - tip.offsetHeight - 10)}px`;
}

function point(event) {
  const x = event.offsetX;
  pointer = view.from + (x / canvas.clientWidth) * (view.to - view.from);
  showTip(textAt(x, event.offsetY), x, event.offsetY);
  redraw();
}

// The spans of a lane one after the other, for those who don't point.
function step(by) {
  const lane = span ? span.lane : lanes[0];
  if (!lane?.count) return;
  const row = all.find((one) => one.kind === "lane" && one.lane === lane);
  const from = firstAfter(lane, (view.from + view.to) / 2);
  const index = Math.max(0, Math.min(lane.count - 1, span ? span.index + by : from));
  stand({ lane, row, index });
}

function change(by) {
  const usable = lanes.filter((lane) => lane.count);
  if (!usable.length) return;
  const at = span ? usable.indexOf(span.lane) + by : 0;
  const lane = usable[(at + usable.length) % usable.length];
  const row = all.find((one) => one.kind === "lane" && one.lane === lane);
  const middle = span ? (span.lane.start[span.index] + span.lane.end[span.index]) / 2
    : (view.from + view.to) / 2;
  stand({ lane, row, index: Math.min(firstAfter(lane, middle), lane.count - 1) });
}

function stand(at) {
  span = at;
  chosen = null;
  const [start, end] = [at.lane.start[at.index], at.lane.end[at.index]];
  const long = view.to - view.from;
  const fits = end - start < long / 2 && end - start > long / 80;
  if (!fits) show(start - 2 * (end - start), end + 2 * (end - start));
  else if (start < view.from || end > view.to) show((start + end - long) / 2, (start + end + long) / 2);
  const lines = spanText(at.lane, at.index);
  const scale = canvas.clientWidth / (view.to - view.from);
  showTip(lines, Math.max(0, (start - view.from) * scale), at.row.y + at.row.height - 12);
  say(lines.join(", "));
  redraw();
}

const KEYS = {
  ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
  ArrowUp: () => change(-1), ArrowDown: () => change(1),
  "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
  Home: () => show(whole.from, whole.to), Escape: () => clear(),
  n: () => next(1), j: () => next(1), p: () => next(-1), k: () => next(-1),
  ",": () => step(-1), ".": () => step(1),
};

function clear() {
  chosen = span = pointer = null;
  showTip(null);
  say("");
  redraw();
}

function onKey(event) {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (span === null) showTip(null);
  act();
}

// A page that scrolls past under a resting pointer goes on scrolling; after a move the wheel zooms.
let armed = false;
function onWheel(event) {
  if (!armed && !event.ctrlKey) return;
  const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
  const out = event.deltaY > 0 && view.to - view.from >= facts.window;
  if (out && !sideways) return;
  event.preventDefault();
  if (sideways) return move((event.deltaX || event.deltaY) / canvas.clientWidth);
  const around = view.from + (event.offsetX / canvas.clientWidth) * (view.to - view.from);
  zoom(Math.exp(Math.max(-100, Math.min(100, event.deltaY)) / 300), around);
}

// One finger or the mouse drags, two fingers pinch.
const fingers = new Map();
function onPointer(event) {
  const before = fingers.get(event.pointerId);
  if (event.type === "pointerdown") {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY, far: 0 });
    armed = true;
  } else if (event.type === "pointermove") {
    if (event.movementX || event.movementY) armed = true;
    if (!before) return point(event);
    const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    const scale = (view.to - view.from) / canvas.clientWidth;
    if (others.length) {
      const [was, now] = [before.x, event.offsetX].map((x) => Math.max(8, Math.abs(x - others[0].x)));
      zoom(was / now, view.from + ((event.offsetX + others[0].x) / 2) * scale);
    } else move((before.x - event.offsetX) / canvas.clientWidth);
    const far = before.far + Math.abs(event.offsetX - before.x);
    fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY, far });
    showTip(null);
  } else {
    fingers.delete(event.pointerId);
    if (event.type !== "pointerup" || !before || before.far > 4) return;
    const row = all.find((one) => event.offsetY >= one.y && event.offsetY < one.y + one.height);
    const near = nearest(row, event.offsetX);
    if (near) jump(near);
    else point(event);
  }
}

function follow() {
  const found = location.hash.match(/^#(late|suspect)-(\d+)$/);
  const one = found && marks.find((mark) => mark.id === `${found[1]}-${found[2]}`);
  if (one) jump(one);
  return Boolean(one);
}

function listen() {
  document.getElementById("tools").addEventListener("click", (event) => {
    const act = KEYS[event.target.closest("button")?.dataset.key];
    if (act) act();
  });
  frame.addEventListener("keydown", onKey);
  canvas.addEventListener("wheel", onWheel, { passive: false });
  window.addEventListener("scroll", () => { armed = false; });
  for (const type of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
    canvas.addEventListener(type, onPointer);
  }
  canvas.addEventListener("pointerleave", () => {
    pointer = null;
    if (!span) showTip(null);
    redraw();
  });
  const overview = document.getElementById("overview");
  const go = (event) => {
    if (!event.buttons) return;
    const box = overview.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * facts.window;
    const long = view.to - view.from < facts.window ? view.to - view.from : facts.window / 20;
    show(Math.max(0, at - long / 2), Math.max(0, at - long / 2) + long);
  };
  overview.addEventListener("pointerdown", go);
  overview.addEventListener("pointermove", go);
  // The rows of the tables lead into the picture, also when one is chosen a second time.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-mark]");
    if (!link) return;
    event.preventDefault();
    history.replaceState(null, "", link.hash);
    follow();
    frame.scrollIntoView({ block: "nearest" });
    canvas.focus({ preventScroll: true });
  });
  window.addEventListener("hashchange", follow);
  new ResizeObserver(redraw).observe(frame);
  for (const asked of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(asked).addEventListener("change", () => {
      mixInks();
      draw(all, view, { chosen, pointer: null, span });
    });
  }
}

async function start() {
  lanes = await unpack();
  all = rows(lanes);
  for (const part of document.querySelectorAll("#interactive, .scripted")) part.hidden = false;
  mixInks();
  listen();
  if (!follow()) redraw();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    performance.mark("drawn");
    frame.dataset.drawn = "yes";
  }));
}

start().catch((error) => {
  document.getElementById("failed").hidden = false;
  console.error(error);
});
