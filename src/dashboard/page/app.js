// The page: from the address to a view, and keys.
import {el, events, Failure, part} from './dom.js';
import * as pages from './pages.js';

const content = document.getElementById('content'), tabs = document.getElementById('tabs'), live = document.getElementById('live');
const ofRun = ['overview', 'metrics', 'episodes', 'best', 'queue'], shownAs = {group: 'episodes', episode: 'episodes'};
let running = null, here = 0, seen = '';

function placeOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, '').split('?');
  const [run, page, ...parts] = path.split('/').filter(Boolean).map((p) => { try { return decodeURIComponent(p); } catch { return p; } });
  return {run, page: run ? page || 'overview' : 'runs', parts, query: Object.fromEntries(new URLSearchParams(query || ''))};
}

function showTabs(place) {
  const links = [['Runs', '#/', place.page === 'runs']];
  if (place.run) for (const p of ofRun) links.push([p[0].toUpperCase() + p.slice(1), pages.address(place.run, p), (shownAs[place.page] || place.page) === p]);
  tabs.replaceChildren(...links.map(([word, href, is]) => el('a', {href, 'aria-current': is ? 'page' : null}, word)));
}

function askKey() {
  const input = el('input', {type: 'password', id: 'key', autocomplete: 'off'});
  return el('form', {submit: (e) => { e.preventDefault(); sessionStorage.setItem('key', input.value); show(); }},
    el('h1', {}, 'This server asks for a key'), el('label', {}, 'key ', input), ' ', el('button', {}, 'go on'));
}

async function show() {
  if (running) running.abort();
  running = new AbortController();
  const signal = running.signal, place = placeOf(location.hash);
  showTabs(place);
  document.title = (place.run ? place.run.slice(0, 80) + ' \u00b7 ' : '') + place.page + ' \u00b7 kernelrl';
  const page = Object.hasOwn(pages, place.page) && !['address', 'episodeAddress'].includes(place.page) ? pages[place.page] : null;
  let e;
  try {
    e = page ? await page(place, signal) : el('p', {}, 'There is no such page.');
  } catch (failure) {
    if (signal.aborted) return;
    e = failure instanceof Failure && failure.status === 401 ? askKey() : el('p', {class: 'alert', role: 'alert'}, 'This cannot be shown: ' + failure.message);
  }
  if (signal.aborted) return;
  content.replaceChildren(e);
  content.dataset.shown = location.hash || '#/';
  here = -1;
}

// While a run is shown, the server tells of its changes; where it cannot, it is asked every two seconds. What is new is shown at once where nothing
// is being read.
async function changed(run, r) {
  const now = `${r.state} ${r.steps} ${r.episodes}`, place = placeOf(location.hash);
  if (run !== place.run) return;
  live.textContent = r.state === 'running' ? '\u25cf live, step ' + r.steps : r.state;
  const isNew = seen && seen !== now;
  seen = now;
  if (isNew && ['overview', 'best', 'queue'].includes(place.page)) await show();
}

const pause = (ms) => new Promise((go) => { setTimeout(go, ms); });
let watched = '', watching = null, isAway = false;

// A browser has six connections to a server, for all of its tabs and for pages that it keeps to go back to. So only a tab that is seen holds one.
function away(is) {
  isAway = is || document.hidden;
  watch();
}

async function watch() {
  const run = isAway ? '' : placeOf(location.hash).run || '';
  if (run === watched) return;
  if (watching) watching.abort();
  watching = new AbortController();
  watched = run;
  if (!isAway) seen = live.textContent = '';
  const signal = watching.signal;
  while (run && !signal.aborted) {
    try {
      await events(`/${part(run)}/events`, (e, r) => { if (e === 'state') changed(run, r).catch(() => {}); else live.textContent = 'the run is gone'; }, signal);
    } catch (e) {
      if (!signal.aborted) live.textContent = e.status === 404 ? 'the run is gone' : 'no connection';
    }
    await pause(2000);
  }
}

function move(by) {
  const rows = [...content.querySelectorAll('a.row')];
  if (!rows.length) return false;
  here = Math.min(rows.length - 1, Math.max(0, here + by));
  content.querySelectorAll('tr.here').forEach((r) => r.classList.remove('here'));
  rows[here].closest('tr').classList.add('here');
  rows[here].focus();
  return true;
}

const follow = (id) => { const a = document.getElementById(id); if (a) a.click(); };

function up(place) {
  const {run, page, parts} = place;
  location.hash = page === 'episode' ? pages.address(run, 'group', parts.slice(0, 2)) : page === 'group' ? pages.address(run, 'episodes') :
    page === 'runs' || page === 'overview' ? '#/' : pages.address(run, 'overview');
}

const keys = [['j, k', 'next or previous row or answer'], ['Enter', 'open'], ['Esc', 'one level up'], ['[, ]', 'turn before, turn behind'], ['g', 'group'],
  ['d', 'diff; again: with the next partner'], ['t', 'tokens'], ['r', 'raw text'], ['y', 'copy the link'], ['/', 'search'], ['?', 'these keys'], ['1 to 6', 'pages']];

const dialog = document.getElementById('keys');
dialog.append(el('h2', {}, 'Keys'), el('table', {}, keys.map(([k, t]) => el('tr', {}, el('th', {scope: 'row'}, k), el('td', {}, t)))),
  el('button', {type: 'button', click: () => dialog.close()}, 'close'));

document.addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || dialog.open || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) return;
  const act = {
    j: () => move(1) || follow('next'), k: () => move(-1) || follow('previous'), Escape: () => up(placeOf(location.hash)),
    '[': () => follow('turn-before'), ']': () => follow('turn-behind'), g: () => follow('group'), d: () => follow('diff'), t: () => follow('tokens'),
    r: () => follow('raw'), y: () => navigator.clipboard && navigator.clipboard.writeText(location.href), '?': () => dialog.showModal(),
    '/': () => { const s = document.getElementById('search'); if (s) s.focus(); },
  }[e.key] || (/^[1-6]$/.test(e.key) ? () => { const a = tabs.children[e.key - 1]; if (a) a.click(); } : null);
  if (!act) return;
  e.preventDefault();
  act();
});

document.getElementById('help').addEventListener('click', () => dialog.showModal());
document.getElementById('theme').addEventListener('click', () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  localStorage.setItem('theme', document.documentElement.dataset.theme = dark ? 'light' : 'dark');
});
const theme = localStorage.getItem('theme');
if (theme) document.documentElement.dataset.theme = theme;
addEventListener('hashchange', () => { show(); watch(); });
addEventListener('pagehide', () => away(true));
addEventListener('pageshow', () => away(false));
document.addEventListener('visibilitychange', () => away(false));
show();
away(false);
