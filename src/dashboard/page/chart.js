// Line charts in SVG: several series over each other, smoothing, a logarithmic axis, a zoom by dragging.
import {el, number, visible} from './dom.js';

const W = 480, H = 190, LEFT = 56, RIGHT = 8, TOP = 8, BOTTOM = 22;
const colours = ['#1f77b4', '#d95f02', '#7570b3', '#999999', '#66a61e', '#e6ab02', '#a6761d', '#17becf'];
const svg = (name, attributes) => {
  const e = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
};

// Seconds as people say them.
export const span = (s) => s < 100 ? number(s, 3) + ' s' : s < 6000 ? number(s / 60, 3) + ' min' : number(s / 3600, 3) + ' h';

export function smooth(values, weight) {
  let m = null;
  return values.map((v) => (v === null ? null : (m = m === null ? v : weight * m + (1 - weight) * v)));
}

// series: [{name, step: [], seconds: [], value: []}]. options: {log, weight, zoom: [from, to], onzoom, seconds: true for an axis of time}
export function chart(title, series, options = {}) {
  const [from, to] = options.zoom || [-Infinity, Infinity];
  const shown = series.map((s, i) => {
    const values = options.weight ? smooth(s.value, options.weight) : s.value;
    const points = (options.seconds ? s.seconds : s.step).map((x, k) => [x, values[k]]).filter(([x, y]) => x >= from && x <= to && y !== null &&
      (!options.log || y > 0));
    return {name: s.name, colour: colours[i % colours.length], points};
  });
  const all = shown.flatMap((s) => s.points);
  const figure = el('figure', {}, el('figcaption', {}, el('strong', {}, title),
    el('span', {class: 'soft'}, all.length ? shown.map((s) => s.points.length ? number(s.points.at(-1)[1]) : '-').join(' \u00b7 ') : 'no values')));
  const f = options.log ? Math.log10 : (y) => y;
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const [x, y] of all) {
    x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, f(y)); y1 = Math.max(y1, f(y));
  }
  if (!all.length) { x0 = 0; x1 = 1; y0 = 0; y1 = 1; }
  if (x0 === x1) x1 = x0 + 1;
  if (y0 === y1) [y0, y1] = y0 === 0 ? [0, 1] : [y0 - Math.abs(y0) / 2, y0 + Math.abs(y0) / 2];
  const px = (x) => LEFT + (x - x0) / (x1 - x0) * (W - LEFT - RIGHT);
  const py = (y) => H - BOTTOM - (f(y) - y0) / (y1 - y0) * (H - TOP - BOTTOM);
  const s = svg('svg', {viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': visible(title)});
  for (let i = 0; i <= 2; i++) {
    const y = H - BOTTOM - i / 2 * (H - TOP - BOTTOM), v = y0 + i / 2 * (y1 - y0);
    s.append(svg('line', {x1: LEFT, x2: W - RIGHT, y1: y, y2: y, class: 'axis'}));
    const t = svg('text', {x: LEFT - 4, y: y + 4, 'text-anchor': 'end'});
    const word = number(options.log ? 10 ** v : v, 3);
    t.textContent = word.includes('e') ? number(Number(word), 2) : word; // with an exponent it would be too long
    s.append(t);
  }
  for (const [x, anchor] of [[x0, 'start'], [x1, 'end']]) {
    const t = svg('text', {x: px(x), y: H - 6, 'text-anchor': anchor});
    t.textContent = options.seconds ? span(x) : number(x);
    s.append(t);
  }
  for (const line of shown) {
    let d = '';
    line.points.forEach(([x, y], i) => { d += (i ? 'L' : 'M') + px(x).toFixed(1) + ' ' + py(y).toFixed(1); });
    if (line.points.length === 1) s.append(svg('circle', {cx: px(line.points[0][0]), cy: py(line.points[0][1]), r: 2.5, fill: line.colour}));
    else if (d) s.append(svg('path', {d, stroke: line.colour}));
  }
  if (options.onzoom) zoom(s, (a, b) => options.onzoom([Math.floor(x0 + a * (x1 - x0)), Math.ceil(x0 + b * (x1 - x0))]), options.onzoom);
  figure.append(s);
  if (shown.length > 1) figure.append(el('div', {}, shown.map((l) => {
    const box = el('span', {}, '\u25a0 ');
    box.style.color = l.colour;
    return el('span', {}, box, l.name + '  ');
  })));
  figure.append(table(shown));
  return figure;
}

// The numbers behind a chart, for who cannot see it: made when it is opened.
function table(shown) {
  const details = el('details', {}, el('summary', {class: 'soft'}, 'numbers'));
  details.addEventListener('toggle', () => {
    if (!details.open || details.children.length > 1) return;
    const body = el('tbody', {});
    for (const line of shown) for (const [x, y] of line.points.slice(-200))
      body.append(el('tr', {}, el('td', {}, line.name), el('td', {class: 'number'}, number(x)), el('td', {class: 'number'}, number(y))));
    details.append(el('table', {}, el('thead', {}, el('tr', {}, ['series', 'step', 'value'].map((t) => el('th', {scope: 'col'}, t)))), body));
  });
  return details;
}

function zoom(s, done, reset) {
  let begin = null, box = null;
  const at = (e) => {
    const r = s.getBoundingClientRect();
    return Math.min(1, Math.max(0, ((e.clientX - r.left) / r.width * W - LEFT) / (W - LEFT - RIGHT)));
  };
  s.addEventListener('pointerdown', (e) => {
    begin = at(e);
    box = svg('rect', {class: 'drag', y: TOP, height: H - TOP - BOTTOM, x: 0, width: 0});
    s.append(box);
    s.setPointerCapture(e.pointerId);
  });
  s.addEventListener('pointermove', (e) => {
    if (begin === null) return;
    const now = at(e), w = W - LEFT - RIGHT;
    box.setAttribute('x', LEFT + Math.min(begin, now) * w);
    box.setAttribute('width', Math.abs(now - begin) * w);
  });
  s.addEventListener('pointerup', (e) => {
    if (begin === null) return;
    const a = Math.min(begin, at(e)), b = Math.max(begin, at(e));
    begin = null;
    box.remove();
    if (b - a > 0.02) done(a, b);
  });
  s.addEventListener('dblclick', () => reset(null));
}
