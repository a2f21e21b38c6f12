// Elements and data. All text of others enters by textContent, with control and direction characters made visible.

const odd = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/;
const odds = new RegExp(odd.source, 'g');

// The text as one line of a table or a title shows it.
export function visible(text) {
  return String(text).replace(odds, (c) => '\u27e8' + c.charCodeAt(0).toString(16).padStart(4, '0') + '\u27e9');
}

// Adds a text to an element; odd characters stand in marks of their own.
export function addText(parent, text, tag) {
  const into = tag ? parent.appendChild(document.createElement(tag.split('.')[0])) : parent;
  if (tag && tag.includes('.')) into.className = tag.split('.')[1];
  if (!odd.test(text)) {
    into.append(text);
    return into;
  }
  let at = 0;
  for (const m of text.matchAll(odds)) {
    if (m.index > at) into.append(text.slice(at, m.index));
    const mark = document.createElement('span');
    mark.className = 'ctl';
    mark.textContent = visible(m[0]);
    into.append(mark);
    at = m.index + 1;
  }
  into.append(text.slice(at));
  return into;
}

// The text with the middle of its longest lines left out: a browser takes seconds to break a line of a megabyte.
const LINE = 4000;
export function shortened(text) {
  if (text.length <= LINE) return text;
  return text.split('\n').map((l) => l.length <= LINE ? l : `${l.slice(0, LINE / 2)} \u2026 ${(l.length - LINE).toLocaleString('en')} characters \u2026 ${l.slice(-LINE / 2)}`).join('\n');
}

// el('a', {href: ...}, child, ...): children are elements or texts. A function is a listener.
export function el(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (v === null || v === undefined || v === false) continue;
    if (typeof v === 'function') e.addEventListener(k, v);
    else e.setAttribute(k, v === true ? '' : v);
  }
  for (const c of children.flat()) {
    if (c === null || c === undefined) continue;
    if (c instanceof Node) e.append(c);
    else e.append(visible(c));
  }
  return e;
}

export function number(v, digits = 4) {
  if (v === null || v === undefined) return '-';
  return Number.isInteger(v) ? v.toLocaleString('en') : Number(v.toPrecision(digits)).toString();
}

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// JSON of the server; a key, where it asks for one, lasts as long as the tab.
export async function ask(path, query, signal) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(query || {})) if (v !== '' && v !== null && v !== undefined) q.set(k, v);
  const key = sessionStorage.getItem('key');
  const text = [...q].length ? '?' + q : '';
  const r = await fetch(path + text, {signal, headers: key ? {authorization: 'Bearer ' + key} : {}});
  const body = await r.json();
  if (!r.ok) throw new Failure(r.status, body.error ? body.error.message : r.statusText);
  return body;
}

export const data = (path, query, signal) => ask('/api/runs' + path, query, signal);

export const part = encodeURIComponent;

// Calls told(event, data) for each event of the server, until it ends or the signal aborts. By fetch, since an EventSource cannot carry the key.
export async function events(path, told, signal) {
  const key = sessionStorage.getItem('key');
  const r = await fetch('/api/runs' + path, {signal, headers: key ? {authorization: 'Bearer ' + key} : {}});
  if (!r.ok) throw new Failure(r.status, r.statusText);
  const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const all = (text + value).split('\n\n');
    text = all.pop();
    for (const e of all) {
      const m = /^event: (\w+)\ndata: (.*)$/.exec(e);
      if (m) told(m[1], JSON.parse(m[2]));
    }
  }
}
