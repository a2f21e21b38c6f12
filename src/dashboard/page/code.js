// Code: coloured, and what differs between two texts, line by line.
import {addText, el, shortened} from './dom.js';

const words = new Set(('auto bool break case char class const continue def default do double else enum extern float for ' +
  'from if import in inline int lambda long None not return self short signed sizeof static struct switch template True ' +
  'False typedef unsigned using void volatile while with yield size_t restrict __global__ __shared__ __device__ ' +
  '__restrict__ __launch_bounds__ threadIdx blockIdx blockDim torch tl triton').split(' '));
const token = /(\/\/[^\n]*|\/\*[^]*?\*\/|#[^\n]*)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|([A-Za-z_]\w*)/g;
const COLOURED = 200000, DIFFED = 4000;

// Where each line with a note ends: [[offset, note]], in order.
function places(text, notes) {
  const found = [];
  for (let line = 1, at = 0; at <= text.length; line++) {
    const end = text.indexOf('\n', at) < 0 ? text.length : text.indexOf('\n', at);
    if (notes.has(line)) found.push([end, notes.get(line)]);
    at = end + 1;
  }
  return found;
}

// notes: a Map from line numbers, from 1 on, to texts that are shown at their ends.
export function code(whole, notes = new Map()) {
  const text = shortened(whole);
  const pre = el('pre', {tabindex: '0'}), ends = places(text, notes);
  let at = 0;
  const put = (to, tag) => {
    for (; ends.length && ends[0][0] <= to; ends.shift()) {
      if (ends[0][0] > at) addText(pre, text.slice(at, ends[0][0]), tag);
      at = Math.max(at, ends[0][0]);
      addText(pre, '  \u2190 ' + ends[0][1], 'span.note');
    }
    if (to > at) addText(pre, text.slice(at, to), tag);
    at = to;
  };
  if (text.length <= COLOURED)
    for (const m of text.matchAll(token)) {
      if (m[3] && !words.has(m[3])) continue;
      put(m.index);
      put(m.index + m[0].length, m[1] ? 'span.c' : m[2] ? 'span.s' : 'span.k');
    }
  put(text.length);
  return pre;
}

// What the static rules found, "rule:line rule:line", by lines.
export function findings(lint) {
  const notes = new Map();
  for (const m of String(lint || '').matchAll(/(\S+):(\d+)/g))
    notes.set(Number(m[2]), [notes.get(Number(m[2])), m[1]].filter(Boolean).join(', '));
  return notes;
}

// [[' ' | '-' | '+', line]] by the longest common subsequence, behind what begins and in front of what ends alike.
export function lines(a, b) {
  const x = a.split('\n'), y = b.split('\n'), head = [], tail = [];
  while (x.length && y.length && x[0] === y[0]) { head.push([' ', x.shift()]); y.shift(); }
  while (x.length && y.length && x.at(-1) === y.at(-1)) { tail.unshift([' ', x.pop()]); y.pop(); }
  const middle = [];
  if (x.length * y.length > DIFFED * DIFFED / 4) {
    x.forEach((l) => middle.push(['-', l]));
    y.forEach((l) => middle.push(['+', l]));
    return [...head, ...middle, ...tail];
  }
  const w = y.length + 1, best = new Uint32Array((x.length + 1) * w);
  for (let i = x.length - 1; i >= 0; i--)
    for (let j = y.length - 1; j >= 0; j--)
      best[i * w + j] = x[i] === y[j] ? best[(i + 1) * w + j + 1] + 1 : Math.max(best[(i + 1) * w + j], best[i * w + j + 1]);
  let i = 0, j = 0;
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) { middle.push([' ', x[i++]]); j++; }
    else if (j === y.length || (i < x.length && best[(i + 1) * w + j] >= best[i * w + j + 1])) middle.push(['-', x[i++]]);
    else middle.push(['+', y[j++]]);
  }
  return [...head, ...middle, ...tail];
}

export function diff(a, b) {
  const pre = el('pre', {tabindex: '0', class: 'diff'});
  for (const [sign, line] of lines(a, b)) addText(pre, sign + ' ' + shortened(line) + '\n', sign === '-' ? 'del' : sign === '+' ? 'ins' : 'span');
  return pre;
}

// The code of an answer: what stands between fences, or else all of it.
export function kernel(text) {
  const m = /```[^\n]*\n([^]*?)```/.exec(text);
  return m ? m[1] : text;
}
