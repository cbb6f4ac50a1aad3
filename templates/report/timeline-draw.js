// The picture of the view's window on a canvas. One column of pixels shows, from the bottom up, the
// shares of what went on in it, so that nothing is left out however much time it stands for.
const AXIS = 30, TITLE = 20, LANE = 30, LATE = 40, MARKS = 18, SPACE = 16;
const NAMED = 26;
const TALLEST = 16384; // pixels: what every browser draws on
const STATES = facts.categories;
const STACKED = facts.stacked;
const WAITING = STATES.findIndex((state) => state.key === "waiting");
const PARTS = facts.parts;
const canvas = document.getElementById("picture");
const pen = canvas.getContext("2d");
let inks = {};

// Which rows the picture has, from top to bottom.
function rows(lanes) {
  const found = [];
  let y = AXIS;
  const add = (row, height) => {
    found.push({ ...row, y, height });
    y += height;
  };
  for (const vcpu of [...new Set(lanes.map((lane) => lane.vcpu))]) {
    for (const lane of lanes.filter((one) => one.vcpu === vcpu)) {
      add({ kind: "title", text: lane.title, lane }, TITLE);
      add({ kind: "lane", lane, vcpu }, LANE);
    }
    const late = facts.late.filter((one) => one.vcpu === vcpu);
    if (late.length) {
      add({ kind: "title", text: `late wake-ups (the tallest: ${length(facts.longest)})` }, TITLE);
      add({ kind: "late", late, vcpu }, LATE);
    }
    const suspects = facts.suspects.filter((one) => one.vcpu === vcpu).sort((a, b) => a.at - b.at);
    if (suspects.length) {
      add({ kind: "title", text: "suspects" }, TITLE);
      add({ kind: "suspects", suspects, vcpu }, MARKS);
    }
    y += SPACE;
  }
  found.height = y;
  return found;
}

function stripes(ink, paper, draw) {
  const scale = window.devicePixelRatio || 1;
  const tile = new OffscreenCanvas(8 * scale, 8 * scale);
  const brush = tile.getContext("2d");
  brush.scale(scale, scale);
  brush.fillStyle = paper;
  brush.fillRect(0, 0, 8, 8);
  brush.strokeStyle = brush.fillStyle = ink;
  brush.lineWidth = 2;
  draw(brush);
  const pattern = pen.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern;
}

function lines(brush, ...ends) {
  for (const [x1, y1, x2, y2] of ends) {
    brush.beginPath();
    brush.moveTo(x1, y1);
    brush.lineTo(x2, y2);
    brush.stroke();
  }
}

// Colours come from the style sheet, so they follow light, dark and paper; each has a pattern too.
function mixInks() {
  const style = getComputedStyle(document.documentElement);
  const token = (name) => style.getPropertyValue(`--${name}`).trim();
  const paper = token("paper");
  const rising = (brush) => lines(brush, [-2, 10, 10, -2], [-2, 2, 2, -2], [6, 10, 10, 6]);
  const crossed = (brush) => {
    brush.lineWidth = 1;
    lines(brush, [0, 0, 8, 8], [0, 8, 8, 0]);
  };
  inks = {
    paper, ink: token("ink"), soft: token("soft"), line: token("line"), noise: token("noise"),
    panel: token("panel"), estimate: token("estimate"),
    guest: token("c0"),
    measured: token("c2"),
    waiting: stripes(token("c1"), paper, rising),
    exit: stripes(token("c4"), paper, (brush) => lines(brush, [2, 0, 2, 8], [6, 0, 6, 8])),
    host: stripes(token("c3"), paper, (brush) => lines(brush, [0, 2, 8, 2], [0, 6, 8, 6])),
    task: stripes(token("c2"), paper, (brush) => {
      for (const [x, y] of [[2, 2], [6, 6]]) brush.fillRect(x - 1.5, y - 1.5, 3, 3);
    }),
    unknown: stripes(token("c6"), paper, crossed),
    part_host: token("c1"), part_exit: token("c4"), part_queue: token("c5"), part_other: token("c6"),
  };
}

function write(text, x, y, { ink = inks.ink, weight = 400, size = 12, align = "left" } = {}) {
  pen.font = `${weight} ${size}px system-ui, sans-serif`;
  pen.textAlign = align;
  pen.lineJoin = "round";
  pen.lineWidth = 4;
  pen.strokeStyle = inks.paper;
  pen.strokeText(text, x, y);
  pen.fillStyle = ink;
  pen.fillText(text, x, y);
}

// As much of a text as there is room for; "" where that says nothing.
function fitting(text, room) {
  pen.font = "12px system-ui, sans-serif";
  if (pen.measureText(text).width <= room) return text;
  let kept = text.slice(0, 40);
  while (kept && pen.measureText(`${kept}…`).width > room) kept = kept.slice(0, -1);
  return kept.length > 2 ? `${kept}…` : "";
}

// Round steps that leave each label room.
function tickStep(view, width) {
  const rough = ((view.to - view.from) * 90) / width;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * magnitude).find((step) => step >= rough);
}

function drawAxis(view, width, height) {
  const step = tickStep(view, width);
  const scale = width / (view.to - view.from);
  for (let n = Math.ceil(view.from / step); n * step <= view.to; n++) {
    const x = (n * step - view.from) * scale;
    pen.fillStyle = inks.line;
    pen.fillRect(Math.round(x), AXIS - 8, 1, height - AXIS + 8);
    const align = x < 30 ? "left" : x > width - 30 ? "right" : "center";
    write(`${moment(n * step, step)} ms`, x, 14, { ink: inks.soft, align });
  }
}

// Of each column of pixels the share of every category, whose sum is less where a lane has no span;
// and the spans that are wide enough for their names.
function columnsOf(lane, view, width) {
  const shares = new Float32Array(width * STATES.length);
  const scale = width / (view.to - view.from);
  const wide = [];
  for (let i = firstAfter(lane, view.from); i < lane.count && lane.start[i] < view.to; i++) {
    const low = Math.max(0, (lane.start[i] - view.from) * scale);
    const high = Math.min(width, (lane.end[i] - view.from) * scale);
    if (high - low >= NAMED) wide.push({ i, low, high });
    const category = lane.category[i];
    const last = Math.min(width - 1, Math.floor(high));
    for (let x = Math.floor(low); x <= last; x++) {
      shares[x * STATES.length + category] += Math.min(high, x + 1) - Math.max(low, x);
    }
  }
  return { shares, wide };
}

function drawLane(row, view, width) {
  const { lane, y, height } = row;
  const { shares, wide } = columnsOf(lane, view, width);
  pen.fillStyle = inks.panel;
  pen.fillRect(0, y, width, height);
  const floor = new Float32Array(width);
  for (const category of STACKED) {
    pen.fillStyle = inks[STATES[category].key];
    const tall = (x) => {
      const share = shares[x * STATES.length + category] * height;
      return share > 0 && category === WAITING ? Math.max(2, share) : share;
    };
    for (let x = 0; x < width; ) {
      const here = tall(x);
      const from = Math.min(floor[x], height - here);
      let next = x;
      while (next < width && tall(next) === here && Math.min(floor[next], height - here) === from) {
        floor[next++] = from + here;
      }
      if (here > 0) pen.fillRect(x, y + height - from - here, next - x, here);
      x = next;
    }
  }
  pen.fillStyle = inks.soft;
  pen.fillRect(0, y + height - 1, width, 1);
  for (const span of wide) nameSpan(row, span);
}

function nameSpan({ lane, y, height }, { i, low, high }) {
  const detail = lane.details[lane.detail[i]];
  const state = STATES[lane.category[i]];
  const text = fitting(detail && state.key !== "idle" ? detail : state.short, high - low - 8);
  if (text) write(text, low + 5, y + height / 2 + 4);
}

function stack(one, x, y, size, horizontal, thick) {
  let at = 0;
  for (const part of PARTS) {
    const long = (size * one.parts[part.index]) / one.latency;
    pen.fillStyle = inks[`part_${part.key}`];
    if (horizontal) {
      pen.fillRect(x + at, y, long, thick);
      const text = `${part.key} ${length(one.parts[part.index])}`;
      if (long > 90) write(text, Math.max(0, x + at) + 4, y + thick - 4);
    } else pen.fillRect(x, y - at - long, thick, long);
    at += long;
  }
}

// Late wake-ups as upright bars, as tall as they are late; lying over their own time where there is
// room for that. Of those that share a place the one that is most late is seen.
function drawLate({ late, y, height }, view, width, chosen) {
  const scale = width / (view.to - view.from);
  pen.fillStyle = inks.soft;
  pen.fillRect(0, y + height - 1, width, 1);
  const taken = new Map();
  for (const one of late) {
    if (one.end < view.from || one.at > view.to) continue;
    const x = (one.at - view.from) * scale;
    const long = one.latency * scale;
    if (long >= 24) {
      stack(one, x, y + height - 19, long, true, 17);
      if (long >= 70) write(`${length(one.latency)} late`, Math.max(0, x) + 4, y + height - 24);
    } else {
      const place = Math.round(x / 4);
      if (!(taken.get(place)?.latency > one.latency)) taken.set(place, one);
    }
  }
  for (const one of taken.values()) {
    const tall = Math.max(4, ((height - 2) * one.latency) / facts.longest);
    stack(one, (one.at - view.from) * scale - 2, y + height - 1, tall, false, one === chosen ? 7 : 4);
  }
}

function drawSuspects({ suspects, y }, view, width) {
  const scale = width / (view.to - view.from);
  let free = -Infinity;
  for (const one of suspects) {
    const low = (one.at - view.from) * scale;
    const high = (one.end - view.from) * scale;
    if (high < 0 || low > width) continue;
    pen.fillStyle = inks.ink;
    pen.fillRect(low, y, Math.max(2, high - low), 4);
    if (low < free) continue;
    write(one.letter, Math.max(5, low + 1), y + 16, { weight: 700, align: "center" });
    free = low + 14;
  }
}

// The host's recorder lost events there. The guest's has its own losses, which its lanes show.
const isHidden = (row) => row.lane?.side !== "guest";

function drawBands(all, view, width, chosen) {
  const height = all.height;
  const scale = width / (view.to - view.from);
  for (const gap of facts.gaps) {
    const low = Math.max(0, (gap.at - view.from) * scale);
    const high = Math.min(width, (gap.end - view.from) * scale);
    if (high < 0 || low > width) continue;
    pen.fillStyle = inks.unknown;
    pen.globalAlpha = 0.55;
    const across = Math.max(3, high - low);
    for (const row of all.filter(isHidden)) pen.fillRect(low, row.y, across, row.height);
    pen.globalAlpha = 1;
    const text = ["lost events: nothing is known here", "lost events", "lost"]
      .find((one) => fitting(one, high - low - 4) === one);
    if (text) write(text, (low + high) / 2, AXIS + 14, { align: "center" });
  }
  if (chosen) {
    const low = (chosen.at - view.from) * scale;
    const high = Math.max(low + 1, (chosen.end - view.from) * scale);
    pen.fillStyle = inks.estimate;
    pen.globalAlpha = 0.12;
    const own = all.filter((row) => row.vcpu === chosen.vcpu);
    for (const row of own) pen.fillRect(low, row.y - TITLE, high - low, row.height + TITLE);
    pen.globalAlpha = 1;
    for (const x of [low, high]) pen.fillRect(Math.round(x) - 1, AXIS - 8, 2, height - AXIS - SPACE + 8);
  }
}

// How far off the guest's side may be: a bar of that length beside the title of each of its lanes,
// and at the pointer.
function drawError(row, view, width, pointer) {
  const error = facts.clock_error;
  if (error === null || row.lane?.side !== "guest") return;
  const scale = width / (view.to - view.from);
  const long = 2 * error * scale;
  if (row.kind === "title") {
    const text = `${width < 480 ? "" : "guest's times "}± ${length(error)}`;
    write(text, width - 4, row.y + 15, { ink: inks.soft, align: "right" });
    const right = width - pen.measureText(text).width - 12;
    const shown = Math.min(long, right - 120);
    if (shown < 3) return;
    pen.fillStyle = inks.ink;
    pen.fillRect(right - shown, row.y + 10, shown, 1.5);
    pen.fillRect(right - shown, row.y + 6, 1.5, 9);
    pen.fillRect(right - 1.5, row.y + 6, 1.5, 9);
  } else if (row.kind === "lane" && pointer !== null && long >= 2) {
    pen.fillStyle = inks.ink;
    pen.globalAlpha = 0.25;
    pen.fillRect((pointer - view.from) * scale - long / 2, row.y, long, row.height);
    pen.globalAlpha = 1;
  }
}

function draw(all, view, { chosen, pointer, span }) {
  const width = canvas.clientWidth;
  const scale = Math.min(window.devicePixelRatio || 1, TALLEST / all.height);
  const wide = Math.round(width * scale);
  const high = Math.round(all.height * scale);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.style.height = `${all.height}px`;
    [canvas.width, canvas.height] = [wide, high];
  }
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, all.height);
  drawAxis(view, width, all.height);
  for (const row of all) {
    if (row.kind === "title") write(row.text, 0, row.y + 15, { weight: row.lane ? 600 : 400 });
    if (row.kind === "lane") drawLane(row, view, width);
    if (row.kind === "late") drawLate(row, view, width, chosen);
    if (row.kind === "suspects") drawSuspects(row, view, width);
    drawError(row, view, width, pointer);
  }
  drawBands(all, view, width, chosen);
  const across = width / (view.to - view.from);
  if (span) {
    const low = (span.lane.start[span.index] - view.from) * across;
    const long = (span.lane.end[span.index] - span.lane.start[span.index]) * across;
    pen.strokeStyle = inks.ink;
    pen.lineWidth = 2;
    pen.strokeRect(low, span.row.y - 1, Math.max(2, long), span.row.height + 2);
  }
  if (pointer !== null) {
    pen.fillStyle = inks.ink;
    pen.fillRect(Math.round((pointer - view.from) * across), AXIS - 8, 1, all.height - AXIS);
  }
}
