#include "view/pipeline_page_parts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace primus::view {
namespace {

class Packer {
 public:
  void add(std::uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<std::uint8_t>(value | 0x80));
      value >>= 7;
    }
    bytes_.push_back(static_cast<std::uint8_t>(value));
  }
  void add_signed(std::int64_t value) {
    add(value >= 0 ? static_cast<std::uint64_t>(value) * 2 : static_cast<std::uint64_t>(-value) * 2 - 1);
  }

  std::string base64() const {
    constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    text.reserve(bytes_.size() * 4 / 3 + 4);
    for (std::size_t i = 0; i < bytes_.size(); i += 3) {
      const auto at = [&](std::size_t j) { return i + j < bytes_.size() ? bytes_[i + j] : 0U; };
      const unsigned three = at(0) << 16 | at(1) << 8 | at(2);
      const std::size_t used = std::min<std::size_t>(3, bytes_.size() - i);
      for (std::size_t j = 0; j < 4; ++j) {
        text += j <= used ? kAlphabet[three >> (18 - 6 * j) & 63] : '=';
      }
    }
    return text;
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

std::uint64_t ticks(double time, double step) {
  return step > 0.0 ? static_cast<std::uint64_t>(std::llround(std::clamp(time / step, 0.0, 1.0) * kPackedTicks)) : 0;
}

}  // namespace

std::string packed_boxes(const ChartRank& rank, double step) {
  Packer packer;
  std::uint64_t last_start = 0;
  std::array<int, kNumBoxKinds> last_micro_batch{};
  for (const Box& box : rank.boxes) {
    const std::uint64_t start = ticks(box.start, step);
    packer.add(start - last_start);
    packer.add(ticks(box.end, step) - start);
    int& last = last_micro_batch[static_cast<std::size_t>(box.kind)];
    packer.add_signed(box.micro_batch - last);
    packer.add(static_cast<std::uint64_t>(box.kind) + 4 * static_cast<std::uint64_t>(box.part) +
               12 * static_cast<std::uint64_t>(box.chunk));
    last = box.micro_batch;
    last_start = start;
  }
  return packer.base64();
}

std::string packed_curve(const ChartRank& rank, double step, double largest) {
  Packer packer;
  std::uint64_t last = 0;
  std::uint64_t last_level = 0;
  const auto bin = static_cast<std::uint64_t>(kPackedTicks) / kPackedPoints;
  for (std::size_t i = 0; i < rank.held.size();) {
    const std::uint64_t start = ticks(rank.held[i].time, step);
    double most = 0.0;
    while (i < rank.held.size() && ticks(rank.held[i].time, step) < start + bin) {
      most = std::max(most, rank.held[i++].amount);
    }
    // A bin's last amount would be lost if nothing came behind it.
    if (i == rank.held.size()) most = rank.held.back().amount;
    const auto level =
        largest > 0.0 ? static_cast<std::uint64_t>(std::lround(std::clamp(most / largest, 0.0, 1.0) * kPackedLevels))
                      : 0;
    if (level == last_level) continue;
    packer.add(start - last);
    packer.add(level);
    last = start;
    last_level = level;
  }
  return packer.base64();
}

const std::string_view kPipelinePageStyle = R"css(
:root { color-scheme: light dark; --paper: #fff; --text: #1f2328; --soft: #59636e; --line: #d5dae0; --lane: #eceff2; --held: #8c95a1; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --text: #e6edf3; --soft: #9da7b3; --line: #2b323c; --lane: #1c222b; --held: #768390; --card: #161b22; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 20px 24px 40px; background: var(--paper); color: var(--text); font: 14px/1.45 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; }
h1 { font-size: 20px; margin: 0 0 10px; } h2 { font-size: 16px; margin: 22px 0 2px; } p { margin: 0 0 8px; color: var(--soft); }
.bar { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; padding: 8px 0; position: sticky; top: 0; background: var(--paper); z-index: 2; border-bottom: 1px solid var(--line); }
.bar label { display: inline-flex; gap: 6px; align-items: center; color: var(--soft); }
button, select, input { font: inherit; color: var(--text); background: var(--card); border: 1px solid var(--line); border-radius: 5px; padding: 2px 9px; }
input[type=number] { width: 84px; } input[type=range] { width: 110px; padding: 0; }
.key { display: inline-flex; gap: 5px; align-items: center; margin-right: 10px; white-space: nowrap; } .key i { width: 13px; height: 13px; display: inline-block; }
.chart { position: relative; } canvas { display: block; width: 100%; touch-action: pan-y; cursor: crosshair; }
.chart canvas + canvas { position: absolute; left: 0; top: 0; pointer-events: none; }
#tip { position: fixed; z-index: 5; pointer-events: none; display: none; background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 6px 9px; box-shadow: 0 2px 8px #0003; white-space: pre; font-size: 13px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 6px 0 0; } th, td { padding: 2px 12px; text-align: right; border-bottom: 1px solid var(--line); } th { color: var(--soft); font-weight: 500; }
summary { cursor: pointer; color: var(--soft); }
@media print { :root { --paper: #fff; --text: #000; --soft: #333; --line: #bbb; --lane: #eceff2; --held: #777; --card: #fff; } .bar .tool, #tip { display: none !important; } .bar { position: static; } body { padding: 0; } .chart { break-inside: avoid; } * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
)css";

// Times below are in ticks of their chart; `view` is a window of the shared axis, in the unit of the picture.
const std::string_view kPipelinePageScript = R"js(
'use strict';
const begun = performance.now();
const D = JSON.parse(document.getElementById('data').textContent);
const LEFT = 74, RIGHT = 196, AXIS = 24, KINDS = ['forward', 'backward', 'backward', 'weight gradient'];
const longest = Math.max(1e-9, ...D.charts.map(c => c.step));
let view = [0, longest], colourBy = D.colourBy, rowScale = 1, picked = -1, printing = false;

function integers(text) {
  const raw = atob(text), out = [];
  for (let i = 0; i < raw.length;) {
    let value = 0, factor = 1, byte;
    do { byte = raw.charCodeAt(i++); value += (byte & 127) * factor; factor *= 128; } while (byte & 128);
    out.push(value);
  }
  return out;
}
function unpack(chart) {
  const scale = chart.step / D.ticks;
  for (const rank of chart.ranks) {
    const numbers = integers(rank.boxes), n = numbers.length / 4;
    rank.n = n; rank.start = new Float64Array(n); rank.end = new Float64Array(n);
    rank.mb = new Int32Array(n); rank.kind = new Uint8Array(n); rank.part = new Uint8Array(n); rank.chunk = new Uint16Array(n);
    let start = 0, longestBox = 0; const last = [0, 0, 0, 0];
    for (let i = 0; i < n; i++) {
      start += numbers[4 * i];
      const code = numbers[4 * i + 3], kind = code & 3, zigzag = numbers[4 * i + 2];
      last[kind] += zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2;
      rank.start[i] = start * scale; rank.end[i] = (start + numbers[4 * i + 1]) * scale;
      rank.mb[i] = last[kind]; rank.kind[i] = kind; rank.part[i] = Math.floor(code / 4) % 3; rank.chunk[i] = Math.floor(code / 12);
      longestBox = Math.max(longestBox, rank.end[i] - rank.start[i]);
    }
    rank.longestBox = longestBox;
    const curve = integers(rank.curve || ''); rank.held = []; let at = 0;
    for (let i = 0; i < curve.length; i += 2) { at += curve[i]; rank.held.push([at * scale, curve[i + 1] / D.levels]); }
    delete rank.boxes; delete rank.curve;
  }
}
D.charts.forEach(unpack);

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function colourOf(rank, i) {
  if (colourBy === 'micro-batch') return D.microBatchColours[rank.mb[i] % D.microBatchColours.length];
  return D.passColours[rank.kind[i]][Math.min(rank.chunk[i], D.passColours[0].length - 1)];
}
const isLight = hex => parseInt(hex.slice(1, 3), 16) * 0.299 + parseInt(hex.slice(3, 5), 16) * 0.587 + parseInt(hex.slice(5, 7), 16) * 0.114 > 140;
function figure(x) { const s = Math.abs(x); return s >= 1000 ? Math.round(x).toLocaleString('en') : String(+x.toFixed(s >= 100 ? 1 : s >= 10 ? 2 : 3)); }
const amount = x => D.memoryUnit.endsWith('B') ? x.toFixed(2) : figure(x);
function rowsOf(chart) {
  const n = chart.ranks.length, lane = Math.max(2, Math.round((n <= 8 ? 28 : n <= 16 ? 22 : n <= 32 ? 14 : n <= 96 ? 9 : 5) * rowScale));
  const curve = chart.ranks.some(r => r.held.length) ? Math.max(2, Math.round(lane * 0.5)) : 0;
  return { lane, curve, pitch: lane + curve + Math.max(1, Math.round(lane * 0.2)) };
}
function firstVisible(rank) {
  const from = view[0] - rank.longestBox; let low = 0, high = rank.n;
  while (low < high) { const middle = (low + high) >> 1; if (rank.start[middle] < from) low = middle + 1; else high = middle; }
  return low;
}
function ticksOf(width) {
  const rough = (view[1] - view[0]) / Math.max(2, width / 110), power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough * 0.999999), out = [];
  for (let t = Math.ceil(view[0] / step) * step; t <= view[1] + step * 1e-6; t += step) out.push(t);
  return { step, out };
}
function size(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = height + 'px';
  const pen = canvas.getContext('2d'); pen.setTransform(ratio, 0, 0, ratio, 0, 0); return pen;
}
let drawn = 0;
function draw(chart) {
  const width = printing ? 1040 : chart.canvas.parentNode.clientWidth, rows = rowsOf(chart), height = chart.ranks.length * rows.pitch + AXIS + 18;
  const pen = size(chart.canvas, width, height), plot = width - LEFT - RIGHT, scale = plot / (view[1] - view[0]), x = t => LEFT + (t - view[0]) * scale;
  const text = css('--text'), soft = css('--soft'), font = 'system-ui, "DejaVu Sans", sans-serif';
  chart.frame = { width, rows, x, scale, plot };
  pen.fillStyle = css('--paper'); pen.fillRect(0, 0, width, height);
  pen.font = '12px ' + font; pen.textBaseline = 'middle'; pen.fillStyle = soft; pen.textAlign = 'right';
  pen.fillText('bubble', LEFT + plot + 66, 8); if (chart.hasMemory) pen.fillText('peak ' + D.memoryUnit, width - 4, 8);
  const bottom = 18 + chart.ranks.length * rows.pitch, ticks = ticksOf(plot);
  const digits = Math.max(0, -Math.floor(Math.log10(ticks.step) + 1e-9));
  pen.strokeStyle = css('--line'); pen.lineWidth = 1; pen.textAlign = 'center'; pen.beginPath();
  for (const t of ticks.out) { pen.moveTo(x(t), 16); pen.lineTo(x(t), bottom + 3); pen.fillText(digits ? t.toFixed(Math.min(digits, 12)) : Math.round(t).toLocaleString('en'), x(t), bottom + 13); }
  pen.stroke(); pen.textAlign = 'left'; pen.fillText(D.timeUnit, LEFT + plot + 14, bottom + 13);
  const every = Math.max(1, Math.ceil(13 / rows.pitch));
  chart.ranks.forEach((rank, r) => {
    const top = 18 + r * rows.pitch;
    pen.save(); pen.beginPath(); pen.rect(LEFT, top, plot, rows.pitch); pen.clip();
    pen.fillStyle = css('--lane'); pen.fillRect(LEFT, top, Math.max(0, x(chart.step) - LEFT), rows.lane);
    const labels = [];
    for (let i = firstVisible(rank); i < rank.n && rank.start[i] < view[1]; i++) {
      const left = x(rank.start[i]), w = (rank.end[i] - rank.start[i]) * scale, part = rank.part[i];
      const h = part ? rows.lane / 2 : rows.lane, y = part === 2 ? top + h : top, colour = colourOf(rank, i);
      pen.globalAlpha = picked < 0 || rank.mb[i] === picked ? 1 : 0.25;
      pen.fillStyle = colour; pen.fillRect(left, y, w > 3 ? w - 0.7 : w + 0.4, part === 1 ? h - 0.7 : h); drawn++;
      if (w > 9 && h >= 9) labels.push([left + w / 2, y + h / 2, rank.mb[i], w, h, colour]);
    }
    pen.globalAlpha = 1; pen.textAlign = 'center';
    for (const [cx, cy, mb, w, h, colour] of labels) {
      const points = Math.min(11, h * 0.8); pen.font = points + 'px ' + font;
      if (String(mb).length * points * 0.6 + 2 > w) continue;
      pen.fillStyle = isLight(colour) ? '#14181d' : '#fff'; pen.fillText(mb, cx, cy + 0.5);
    }
    if (rank.held.length) {
      const floor = top + rows.lane + rows.curve; pen.fillStyle = css('--held'); pen.beginPath(); pen.moveTo(x(0), floor);
      let level = floor;
      for (const [t, share] of rank.held) { const px = x(t); pen.lineTo(px, level); level = floor - share * (rows.curve - 1); pen.lineTo(px, level); }
      pen.lineTo(x(chart.step), level); pen.lineTo(x(chart.step), floor); pen.closePath(); pen.fill();
    }
    pen.restore();
    if (r % every) return;
    pen.font = '12px ' + font; pen.textAlign = 'right'; pen.fillStyle = text;
    pen.fillText('rank ' + r, LEFT - 8, top + rows.lane / 2); pen.fillText((100 * rank.bubble).toFixed(2) + ' %', LEFT + plot + 66, top + rows.lane / 2);
    if (rank.memory !== undefined) pen.fillText(amount(rank.memory), width - 4, top + rows.lane / 2);
  });
  size(chart.overlay, width, height);
}
function drawAll() {
  drawn = 0; D.charts.forEach(draw);
  document.body.dataset.drawn = drawn; document.body.dataset.view = view.join(' ');
}
let waiting = false;
function later() { if (waiting) return; waiting = true; requestAnimationFrame(() => { waiting = false; drawAll(); }); }
function show(from, to) {
  const least = longest * 1e-5, span = Math.min(longest, Math.max(least, to - from)), start = Math.min(Math.max(0, from), longest - span);
  view = [start, start + span]; later();
}
function zoom(factor, at) { show(at - (at - view[0]) * factor, at + (view[1] - at) * factor); }

function boxAt(chart, event) {
  const area = chart.canvas.getBoundingClientRect(), { rows, x, scale } = chart.frame;
  const r = Math.floor((event.clientY - area.top - 18) / rows.pitch), rank = chart.ranks[r]; if (!rank) return null;
  const t = view[0] + (event.clientX - area.left - LEFT) / scale, inRow = event.clientY - area.top - 18 - r * rows.pitch;
  if (event.clientX - area.left < LEFT || t > view[1]) return { r, rank, i: -1, t };
  let low = 0, high = rank.n;
  while (low < high) { const middle = (low + high) >> 1; if (rank.start[middle] <= t) low = middle + 1; else high = middle; }
  for (let i = low - 1; i >= 0 && rank.start[i] > t - rank.longestBox - 1e-12; i--) {
    const part = rank.part[i], hits = !part || (part === 2) === (inRow > rows.lane / 2);
    if (rank.end[i] > t && hits) return { r, rank, i, t };
  }
  return { r, rank, i: -1, t };
}
function heldAt(rank, t) { let share = 0; for (const [time, level] of rank.held) { if (time > t) break; share = level; } return share; }
const tip = document.getElementById('tip');
function tell(chart, event) {
  const hit = boxAt(chart, event); const pen = chart.overlay.getContext('2d');
  pen.clearRect(0, 0, chart.frame.width, chart.overlay.height);
  if (!hit) { tip.style.display = 'none'; return; }
  const { rank, r, i } = hit, lines = ['rank ' + r];
  if (i >= 0) {
    lines[0] += ', ' + KINDS[rank.kind[i]] + (rank.kind[i] === 2 ? ' with weight gradient' : '');
    lines.push('micro-batch ' + rank.mb[i] + (chart.chunks > 1 ? ', chunk ' + rank.chunk[i] : ''));
    lines.push(figure(rank.start[i]) + ' to ' + figure(rank.end[i]) + ' ' + D.timeUnit + ' (' + figure(rank.end[i] - rank.start[i]) + ')');
    if (rank.part[i]) lines.push('side by side with the other half');
    outline(chart, pen, rank.mb[i]);
  } else lines[0] += ', idle at ' + figure(hit.t) + ' ' + D.timeUnit;
  if (rank.held.length) lines.push('holds ' + amount(heldAt(rank, hit.t) * chart.largest) + ' ' + D.memoryUnit);
  tip.textContent = lines.join('\n'); tip.style.display = 'block';
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px'; tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + 'px';
}
function outline(chart, pen, mb) {
  const { rows, x, scale, plot } = chart.frame; pen.strokeStyle = css('--text'); pen.lineWidth = 1.6;
  pen.save(); pen.beginPath(); pen.rect(LEFT, 0, plot, chart.overlay.height); pen.clip();
  chart.ranks.forEach((rank, r) => {
    for (let i = firstVisible(rank); i < rank.n && rank.start[i] < view[1]; i++) {
      if (rank.mb[i] !== mb) continue;
      const part = rank.part[i], h = part ? rows.lane / 2 : rows.lane, y = 18 + r * rows.pitch + (part === 2 ? h : 0);
      pen.strokeRect(x(rank.start[i]), y, Math.max(1, (rank.end[i] - rank.start[i]) * scale - 0.7), h);
    }
  });
  pen.restore();
}
D.charts.forEach((chart, c) => {
  const place = document.getElementById('chart' + c); chart.canvas = place.children[0]; chart.overlay = place.children[1];
  chart.canvas.addEventListener('wheel', e => {
    if (!e.ctrlKey && !e.metaKey && !e.shiftKey) return;
    e.preventDefault(); const area = chart.canvas.getBoundingClientRect(); const at = view[0] + (e.clientX - area.left - LEFT) / chart.frame.scale;
    zoom(Math.pow(1.002, e.deltaY || e.deltaX), Math.min(view[1], Math.max(view[0], at)));
  }, { passive: false });
  let grip = null;
  chart.canvas.addEventListener('pointerdown', e => { grip = { x: e.clientX, from: view[0] }; chart.canvas.setPointerCapture(e.pointerId); });
  chart.canvas.addEventListener('pointerup', () => { grip = null; });
  chart.canvas.addEventListener('pointermove', e => {
    if (grip) { const from = grip.from - (e.clientX - grip.x) / chart.frame.scale; show(from, from + view[1] - view[0]); } else tell(chart, e);
  });
  chart.canvas.addEventListener('pointerleave', () => { tip.style.display = 'none'; chart.overlay.getContext('2d').clearRect(0, 0, chart.frame.width, chart.overlay.height); });
  chart.canvas.addEventListener('dblclick', () => show(0, longest));
});
const middle = () => (view[0] + view[1]) / 2, by = id => document.getElementById(id);
by('in').onclick = () => zoom(0.5, middle()); by('out').onclick = () => zoom(2, middle()); by('fit').onclick = () => show(0, longest);
by('colour').value = colourBy; by('colour').onchange = e => { colourBy = e.target.value; by('passes').hidden = colourBy !== 'pass'; later(); };
by('passes').hidden = colourBy !== 'pass';
by('height').oninput = e => { rowScale = Number(e.target.value); later(); };
by('pick').oninput = e => { picked = e.target.value === '' ? -1 : Number(e.target.value); later(); };
addEventListener('keydown', e => {
  if (e.target.tagName === 'INPUT' || e.target.tagName === 'SELECT') return;
  const span = view[1] - view[0];
  if (e.key === '+' || e.key === '=') zoom(0.7, middle()); else if (e.key === '-') zoom(1 / 0.7, middle()); else if (e.key === '0') show(0, longest);
  else if (e.key === 'ArrowLeft') show(view[0] - span / 8, view[1] - span / 8); else if (e.key === 'ArrowRight') show(view[0] + span / 8, view[1] + span / 8); else return;
  e.preventDefault();
});
addEventListener('resize', later); matchMedia('(prefers-color-scheme: dark)').addEventListener('change', later);
let before = null;
addEventListener('beforeprint', () => { before = view; view = [0, longest]; printing = true; drawAll(); });
addEventListener('afterprint', () => { view = before || view; printing = false; drawAll(); });
drawAll();
document.body.dataset.ready = Math.round(performance.now() - begun);
)js";

}  // namespace primus::view
