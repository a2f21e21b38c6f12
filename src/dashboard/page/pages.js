// The pages. Each is an async function of (place, signal) that returns an element; place: {run, page, parts, query}.
import {addText, ask, data, el, number, part, shortened, visible} from './dom.js';
import {chart, span} from './chart.js';
import {code, diff, findings, kernel} from './code.js';

// The address of a place: all of its state is in the fragment.
export function address(run, page, parts = [], query = {}) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(query)) if (v !== '' && v !== null && v !== undefined) q.set(k, v);
  return '#/' + [run, page, ...parts].filter((p) => p !== null && p !== undefined).map(part).join('/') + ([...q].length ? '?' + q : '');
}

const cell = (v, isNumber) => el('td', {class: isNumber ? 'number' : null}, v);
const heads = (names) => el('thead', {}, el('tr', {}, names.map((n) => el('th', {scope: 'col'}, n))));
const outcome = (o) => el('span', {class: o === 'correct' ? 'good' : 'bad'}, o ? (o === 'correct' ? '\u2713\u00a0' : '\u2717\u00a0') + o : '-');

// What the server beside this page has to judge, asked again while it is seen. null: the server gives no verdicts.
let hasQueue = true;
async function serverQueue(signal) {
  const state = () => ask('/v1/verify/queue', {}, signal).catch((e) => { if (e.status === 404) return null; throw e; });
  const q = hasQueue ? await state() : null;
  hasQueue = q !== null;
  if (!hasQueue) return null;
  const say = el('p', {id: 'server-queue'});
  const tell = (now) => {
    say.textContent = now.queued + now.running === 0 ? `Nothing waits. Up to ${number(now.most)} answers may.` :
      `${number(now.running)} judged now, ${number(now.queued)} waiting (of ${number(now.most)} that may), of ${number(now.keys)} API keys` +
      (now.seconds_ahead === null ? '' : `; all of it takes about ${span(now.seconds_ahead)}`);
  };
  tell(q);
  const again = setInterval(() => state().then((now) => now && tell(now)).catch((e) => { if (!signal.aborted) say.textContent = 'The server does not answer: ' + e.message; }), 1000);
  signal.addEventListener('abort', () => clearInterval(again));
  return el('section', {}, el('h2', {}, 'Verdicts that this server gives'), say);
}

export async function runs(place, signal) {
  const [{runs: list}, verdicts] = await Promise.all([data('', {}, signal), serverQueue(signal)]);
  const body = el('tbody', {}, list.map((r) => el('tr', {},
    el('td', {}, el('a', {href: address(r.name, 'overview'), class: 'row'}, r.name)),
    el('td', {}, (r.state === 'running' ? '\u25cf ' : '') + r.state), cell(number(r.steps), true),
    cell(r.fraction === null ? '-' : Math.round(100 * r.fraction) + ' %', true),
    cell(new Date(1000 * r.changed_s).toLocaleString()), el('td', {class: 'bad'}, r.error || ''))));
  return el('section', {}, el('h1', {}, 'Runs'), list.length ? el('div', {class: 'wide'},
    el('table', {}, heads(['run', 'state', 'steps', 'done', 'last change', 'error']), body)) : el('p', {}, 'There are no runs yet.'), verdicts);
}

// Of lines of JSON a table; a line that is none is shown as it is.
function checkpoints(lines) {
  const row = (line) => {
    try {
      const c = JSON.parse(line);
      return el('tr', {}, cell(c.name), cell(number(c.next_step), true), cell(c.kind), cell(new Date(1000 * c.time).toLocaleString()));
    } catch {
      return el('tr', {}, el('td', {colspan: 4}, line));
    }
  };
  return el('div', {class: 'wide'}, el('table', {}, heads(['name', 'next step', 'weights', 'written']),
    el('tbody', {}, lines.split('\n').filter(Boolean).map(row))));
}

const first = ['reward/mean', 'kernel/correct_rate', 'kernel/geomean_speedup', 'policy/entropy', 'policy/truncated_rate', 'time/total_s'];

export async function overview(place, signal) {
  const [run, {series}] = await Promise.all([data('/' + part(place.run), {}, signal),
    data('/' + part(place.run) + '/metrics', {names: first.join(), points: 400}, signal)]);
  const numbers = ['reward/mean', 'kernel/correct_rate', 'kernel/fast_1_rate', 'kernel/geomean_speedup', 'kernel/cheat_rate'];
  const wrong = [run.index, run.metrics_file].filter((t) => t !== 'ok');
  return el('section', {}, el('h1', {}, place.run),
    el('p', {}, `${run.state}, ${number(run.steps)} steps, ${number(run.episodes)} answers. `,
      numbers.map((n) => `${n} ${number(run.metrics[n])}`).join(' \u00b7 ')),
    run.error ? el('p', {class: 'alert'}, run.error) : null, wrong.map((t) => el('p', {class: 'alert'}, t)),
    run.alerts.map((a) => el('p', {class: 'alert', role: 'alert'}, a.text + ' ', el('a', {href: address(place.run, 'episodes',
      [], {step_from: Math.max(0, run.steps - 1)})}, 'Its answers'))),
    el('div', {class: 'charts'}, first.map((n) => chart(n, series[n] ? [{name: n, ...series[n]}] : []))),
    el('h2', {}, 'Checkpoints'), run.checkpoints ? checkpoints(run.checkpoints) : el('p', {}, 'None yet.'),
    el('details', {}, el('summary', {}, 'Configuration'), code(run.config || '')));
}

export async function metrics(place, signal) {
  const q = place.query, others = (q.with || '').split(',').filter(Boolean).map(decodeURIComponent);
  const [run, {runs: list}] = await Promise.all([data('/' + part(place.run), {}, signal), data('', {}, signal)]);
  const find = (q.find || '').toLowerCase();
  const names = Object.keys(run.metrics).filter((n) => n.toLowerCase().includes(find)).sort();
  const page = Number(q.page || 0), shown = names.slice(24 * page, 24 * page + 24);
  const of = [place.run, ...others];
  const all = await Promise.all(of.map((r) => data('/' + part(r) + '/metrics', {names: shown.join(), points: 400}, signal)));
  const go = (change) => { location.hash = address(place.run, 'metrics', [], {...q, ...change}); };
  const zoom = q.zoom ? q.zoom.split('-').map(Number) : null;
  const options = {log: q.log === '1', weight: Number(q.weight || 0), zoom, onzoom: (z) => go({zoom: z ? z.join('-') : ''}), seconds: q.by === 'time'};
  const groups = new Map();
  for (const n of shown) groups.set(n.split('/')[0], [...(groups.get(n.split('/')[0]) || []), n]);
  return el('section', {}, el('h1', {}, 'Metrics of ' + of.map(visible).join(', ')), el('div', {class: 'filters'},
    el('label', {}, 'name', el('input', {id: 'search', type: 'search', value: q.find || '', change: (e) => go({find: e.target.value, page: ''})})),
    el('label', {}, 'beside', el('select', {change: (e) => go({with: [...others, e.target.value].map(part).join()})},
      el('option', {value: ''}, 'another run'), list.filter((r) => !of.includes(r.name)).map((r) => el('option', {value: r.name}, r.name)))),
    others.length ? el('button', {type: 'button', click: () => go({with: ''})}, 'this run alone') : null,
    el('label', {}, 'smoothing', el('input', {type: 'number', min: 0, max: 0.99, step: 0.05, value: q.weight || 0, change: (e) => go({weight: e.target.value})})),
    el('label', {}, 'logarithmic', el('input', {type: 'checkbox', checked: q.log === '1', change: (e) => go({log: e.target.checked ? '1' : ''})})),
    el('label', {}, 'by', el('select', {change: (e) => go({by: e.target.value, zoom: ''})}, [['', 'step'], ['time', 'time']].map(([v, t]) =>
      el('option', {value: v, selected: (q.by || '') === v}, t)))),
    zoom ? el('button', {type: 'button', click: () => go({zoom: ''})}, 'all of it') : null,
    el('button', {type: 'button', click: () => csv(place.run)}, 'CSV'),
    page > 0 ? el('button', {type: 'button', click: () => go({page: page - 1})}, 'earlier names') : null,
    24 * page + 24 < names.length ? el('button', {type: 'button', click: () => go({page: page + 1})}, 'further names') : null),
    [...groups].map(([g, of_group]) => [el('h2', {}, g), el('div', {class: 'charts'}, of_group.map((n) => chart(n,
      all.map((a, i) => a.series[n] ? {name: of[i], ...a.series[n]} : null).filter(Boolean), options)))]).flat());
}

// By fetch, since a link cannot carry the key.
async function csv(run) {
  const key = sessionStorage.getItem('key');
  const r = await fetch('/api/runs/' + part(run) + '/metrics.csv', {headers: key ? {authorization: 'Bearer ' + key} : {}});
  if (!r.ok) return;
  const url = URL.createObjectURL(await r.blob());
  el('a', {href: url, download: 'metrics.csv'}).click();
  URL.revokeObjectURL(url);
}

const filters = ['step_from', 'step_to', 'problem', 'outcome', 'class', 'stop', 'role', 'reward_min', 'reward_max', 'speedup_min', 'speedup_max', 'text'];
export const episodeAddress = (run, r, query = {}) => address(run, 'episode', [r.step, r.group, r.sample, r.turn], {role: r.role, ...query});

function rowOf(run, r) {
  return el('tr', {}, el('td', {}, el('a', {href: episodeAddress(run, r), class: 'row'}, `${r.step}/${r.group}/${r.sample}/${r.turn}`)),
    cell(r.problem || '-'), cell(r.role || 'solver'), el('td', {}, outcome(r.outcome)), cell(r.passed_stage || '-'), cell(number(r.reward), true),
    cell(number(r.advantage), true), cell(r.speedup === null ? '-' : `${number(r.speedup, 3)} [${number(r.speedup_low, 2)} ${number(r.speedup_high, 2)}]`, true),
    cell(number(r.tokens), true), cell(r.stop || '-'));
}

const columns = [['answer', 'step'], ['problem'], ['role'], ['outcome'], ['passed'], ['reward', 'reward', true],
  ['advantage', 'advantage', true], ['speed-up', 'speedup', true], ['tokens', 'tokens', true], ['stop']];

function tableOf(run, rows, sort, go) {
  return el('div', {class: 'wide'}, el('table', {}, el('thead', {}, el('tr', {}, columns.map(([name, key, isNumber]) => el('th', {scope: 'col',
    class: isNumber ? 'number' : null, 'aria-sort': go && key && key === sort ? 'descending' : null}, go && key ? el('button', {type: 'button', click: () => go({sort: key})},
    name + (key === sort ? '\u00a0\u25be' : '')) : name)))), el('tbody', {}, rows.map((r) => rowOf(run, r)))));
}

export async function episodes(place, signal) {
  const q = place.query, go = (change) => { location.hash = address(place.run, 'episodes', [], {...q, ...change}); };
  const ask = (cursor) => data('/' + part(place.run) + '/episodes', {...q, cursor, limit: 100}, signal);
  const found = await ask('');
  const table = tableOf(place.run, found.rows, q.sort || 'step', q.text ? null : go);
  const count = el('p', {role: 'status'}), more = el('button', {type: 'button', id: 'more'}, 'more');
  let rows = found.rows.length, cursor = found.cursor;
  const say = () => {
    count.textContent = `${number(rows)} shown${q.text ? ' that hold the text' : ''}; ${number(found.matches)} of ${number(found.total)} match` +
      (q.text && cursor !== null ? `; ${number(cursor)} are still to be looked at` : '');
    more.hidden = cursor === null;
  };
  const next = async () => {
    const goal = rows + 100;
    do { // a search answers in portions, which may be empty
      const f = await ask(cursor);
      table.querySelector('tbody').append(...f.rows.map((r) => rowOf(place.run, r)));
      rows += f.rows.length;
      cursor = f.cursor;
      say();
    } while (q.text && cursor !== null && rows < goal && !signal.aborted);
  };
  more.addEventListener('click', () => next().catch((e) => { count.textContent = e.message; }));
  say();
  if (q.text && rows < 100 && cursor !== null) setTimeout(() => more.click());
  return el('section', {}, el('h1', {}, 'Answers of ' + visible(place.run)), el('form', {class: 'filters', submit: (e) => {
    e.preventDefault();
    go(Object.fromEntries(filters.map((f) => [f, e.target.elements[f].value.trim()])));
  }}, el('button', {type: 'button', id: 'cheats', 'aria-pressed': String(q.class === 'H'), click: () => go({class: q.class === 'H' ? '' : 'H'})}, 'cheats'),
  filters.map((f) => el('label', {}, f.replace('_', ' '), el('input', {name: f, id: f === 'text' ? 'search' : null, value: q[f] || ''}))),
  el('button', {}, 'filter')), count, table, more);
}

async function trace(run, r, signal) {
  return data(`/${part(run)}/episode/${r.step}/${r.group}/${r.sample}/${r.turn}`, {role: r.role}, signal);
}

const spread = (rows) => new Set(rows.filter((r) => !r.role).map((r) => r.reward)).size;

// The text of the problem's module; null: the server does not know it.
async function moduleOf(run, problem, signal) {
  if (!problem) return null;
  try {
    return (await data(`/${part(run)}/problem`, {problem}, signal)).code;
  } catch (e) {
    if (e.status === 404) return null;
    throw e;
  }
}

// What the answers of these rows were asked: the first answer to a prompt has it. turn: of which turn; sample: of whose, behind the first turn.
const PROMPT_SHOWN = 800;
async function promptOf(run, rows, role, turn, sample, signal) {
  const first = rows.find((r) => (r.role || '') === (role || '') && r.turn === turn && (turn === 0 || r.sample === sample));
  const t = first && (await trace(run, first, signal)).trace;
  if (!t || (!t.prompt_text && !t.prompt_ids)) return null;
  if (!t.prompt_text) return el('p', {class: 'soft'}, `The prompt has ${number(t.prompt_ids.length)} tokens. Runs of older versions kept no text of it.`);
  const text = String(t.prompt_text), pre = el('pre', {tabindex: '0'});
  const show = (n) => { pre.textContent = ''; addText(pre, shortened(n < text.length ? text.slice(0, n) + ' \u2026' : text)); };
  show(PROMPT_SHOWN);
  const all = text.length <= PROMPT_SHOWN ? null : el('button', {type: 'button', id: 'all-of-prompt', click: () => { show(text.length); all.remove(); }},
    `show all ${number(text.length)} characters`);
  return el('details', {id: 'prompt'}, el('summary', {}, 'The prompt'), pre, all);
}

export async function group(place, signal) {
  const [step, g] = place.parts, {rows} = await data(`/${part(place.run)}/group/${step}/${g}`, {}, signal);
  const prompt = await promptOf(place.run, rows, rows[0].role, rows[0].turn, rows[0].sample, signal);
  rows.sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity));
  const module = await moduleOf(place.run, rows[0].problem, signal);
  const traces = await Promise.all(rows.slice(0, 16).map((r) => trace(place.run, r, signal)));
  return el('section', {}, el('h1', {}, `Group ${g} of step ${step}: ${visible(rows[0].problem || '')}`),
    spread(rows) === 1 && rows.length > 1 ? el('p', {class: 'alert'}, 'All answers scored the same: the group teaches nothing.') : null,
    module === null ? null : el('details', {}, el('summary', {}, 'The module to beat'), code(module)), prompt,
    tableOf(place.run, rows), el('h2', {}, 'Side by side'), el('div', {class: 'turns'}, traces.map((t) => el('section', {},
      el('h3', {}, el('a', {href: episodeAddress(place.run, t.row)}, `${t.row.sample}/${t.row.turn}`), ` reward ${number(t.row.reward)} advantage ${number(t.row.advantage)}`),
      code(kernel(String(t.trace.text)), findings(t.trace.verdict && t.trace.verdict.lint))))));
}

function strip(t) {
  const ids = t.trace.ids || [], logp = t.trace.logp || [], say = el('p', {role: 'status', class: 'soft'}, 'A cell is a token: the deeper its colour, the less likely it was.');
  const box = el('div', {class: 'strip', role: 'img', 'aria-label': `${ids.length} tokens by log-probability`});
  logp.slice(0, 4000).forEach((p, i) => {
    const c = el('i', {title: `token ${i}: id ${ids[i]}, p ${number(Math.exp(p), 3)}`});
    c.style.background = `rgba(217, 95, 2, ${Math.min(1, 0.06 - p / 4)})`;
    box.append(c);
  });
  box.addEventListener('pointerover', (e) => { if (e.target.title) say.textContent = e.target.title; });
  return [box, say];
}

const order = ['extract', 'lint', 'compile', 'run', 'correct', 'timed'];

function stages(v) {
  const passed = order.indexOf(v.passed_stage);
  return el('ol', {class: 'stages'}, order.map((s, i) => el('li', {class: i <= passed ? 'good' : i === passed + 1 && v.outcome !== 'correct' ? 'bad' : 'soft'},
    (i <= passed ? '\u2713 ' : i === passed + 1 && v.outcome !== 'correct' ? '\u2717 ' : '') + s + (s === 'compile' && v.compile_s ? ` ${number(v.compile_s, 2)} s` : '') +
    (s === 'correct' && v.tests_total ? ` ${v.tests_passed}/${v.tests_total}` : '') + (s === 'timed' && v.speedup ? ` ${number(v.speedup, 3)} [${number(v.speedup_low, 3)} ${number(v.speedup_high, 3)}]` : ''))));
}

function rewards(reward) {
  const parts = Object.entries(reward).filter(([k, v]) => k !== 'total' && typeof v === 'number' && v !== 0), bar = el('div', {class: 'bar', 'aria-hidden': 'true'});
  for (const [k, v] of parts) {
    const p = el('i', {class: v < 0 ? 'minus' : null, title: `${visible(k)} ${number(v)}`});
    p.style.flex = String(Math.abs(v));
    bar.append(p);
  }
  return el('div', {}, bar, el('p', {}, `reward ${number(reward.total)}; its parts before weighting: ` + parts.map(([k, v]) => `${k} ${number(v)}`).join(' \u00b7 ')));
}

export async function episode(place, signal) {
  const [step, g, sample, turn] = place.parts.map(Number), q = place.query;
  const path = `/${part(place.run)}/`;
  const [t, {rows}, {best}] = await Promise.all([trace(place.run, {step, group: g, sample, turn, role: q.role}, signal),
    data(path + `group/${step}/${g}`, {}, signal), data(path + 'best', {}, signal)]);
  const v = t.trace.verdict || null, text = String(t.trace.text), own = rows.filter((r) => (r.role || '') === (q.role || ''));
  const turns = own.filter((r) => r.sample === sample), at = turns.findIndex((r) => r.turn === turn);
  const top = own.filter((r) => r.reward !== null).sort((a, b) => b.reward - a.reward)[0];
  const module = q.diff === undefined ? null : await moduleOf(place.run, t.row.problem, signal);
  const prompt = await promptOf(place.run, rows, q.role, turn, sample, signal);
  const partners = [['turn before', turns[at - 1]], ["the group's best", top], ['the best known', best.find((b) => b.problem === t.row.problem)]]
    .filter(([, r]) => r && !(r.step === step && r.group === g && r.sample === sample && r.turn === turn));
  if (module !== null) partners.push(['the module to beat', null]);
  const with_ = q.diff !== undefined && partners.length ? partners[Number(q.diff) % partners.length] : null;
  const other = !with_ ? null : with_[1] ? kernel(String((await trace(place.run, with_[1], signal)).trace.text)) : module;
  const to = (change) => episodeAddress(place.run, t.row, {...q, ...change});
  const thought = /<think>([^]*?)<\/think>/.exec(text);
  const near = (r, word, id) => r ? el('a', {href: episodeAddress(place.run, r), id}, word) : null;
  const i = own.findIndex((r) => r.sample === sample && r.turn === turn);
  return el('section', {}, el('h1', {}, `Answer ${place.parts.join('/')}: ${visible(t.row.problem || '')}`),
    el('p', {class: 'links'}, near(own[i - 1], 'previous (k)', 'previous'), near(own[i + 1], 'next (j)', 'next'),
      near(turns[at - 1], 'turn before ([)', 'turn-before'), near(turns[at + 1], 'turn behind (])', 'turn-behind'),
      el('a', {href: address(place.run, 'group', [step, g]), id: 'group'}, 'group (g)'),
      partners.length || q.diff === undefined ? el('a', {href: to({diff: with_ ? Number(q.diff) + 1 : 0}), id: 'diff'}, 'diff (d)') : null,
      el('a', {href: to({tokens: q.tokens ? '' : '1'}), id: 'tokens'}, 'tokens (t)'), el('a', {href: to({raw: q.raw ? '' : '1'}), id: 'raw'}, 'raw (r)')),
    v ? [el('p', {}, outcome(v.outcome), v.class ? ` class ${v.class}` : ''), stages(v), v.message ? addText(el('pre', {}), shortened(String(v.message))) : null] : el('p', {}, 'It has no verdict.'),
    v && v.lint ? el('p', {}, 'Static rules: ' + v.lint) : null,
    t.trace.reward && typeof t.trace.reward === 'object' ? rewards(t.trace.reward) : null,
    el('p', {class: 'soft'}, `return ${number(t.row.return)} \u00b7 advantage ${number(t.row.advantage)} \u00b7 ${number(t.row.tokens)} tokens \u00b7 stop ${t.row.stop}`),
    q.tokens ? strip(t) : null, prompt, thought ? el('details', {}, el('summary', {}, 'What it thought'), code(thought[1])) : null,
    other !== null ? [el('h2', {}, `From ${with_[0]}${with_[1] ? ` (${['step', 'group', 'sample', 'turn'].map((k) => with_[1][k]).join('/')})` : ''} to this`),
      diff(other, kernel(text))] : q.raw ? addText(el('pre', {}), shortened(text)) :
      [el('button', {type: 'button', click: () => navigator.clipboard.writeText(kernel(text))}, 'copy'), code(kernel(text), findings(v && v.lint))]);
}

export async function best(place, signal) {
  const {best: rows} = await data(`/${part(place.run)}/best`, {}, signal);
  return el('section', {}, el('h1', {}, 'Best kernels of ' + visible(place.run)), rows.length ? tableOf(place.run, rows) : el('p', {}, 'No correct answer was timed yet.'));
}

// How the verifier keeps up, and who judges: of runs with verify_hosts all of it, of others the time that judging took.
export async function queue(place, signal) {
  const [run, verdicts] = await Promise.all([data('/' + part(place.run), {}, signal), serverQueue(signal)]), busy = 'verify/busy/';
  const names = Object.keys(run.metrics), hosts = names.filter((n) => n.startsWith(busy)).sort();
  const shown = names.filter((n) => (n.startsWith('verify/') && !n.startsWith(busy)) || /^time\/(verif|model_stood)/.test(n) || n === 'batch/cache_hit_rate').sort();
  const {series} = shown.length ? await data('/' + part(place.run) + '/metrics', {names: shown.slice(0, 64).join(), points: 400}, signal) : {series: {}};
  return el('section', {}, el('h1', {}, 'Queue and hosts of ' + visible(place.run)),
    hosts.length ? el('table', {}, heads(['host', 'share of the last step that it judged']), el('tbody', {}, hosts.map((h) => el('tr', {},
      cell(h.slice(busy.length)), cell(run.metrics[h] === null ? '-' : Math.round(100 * run.metrics[h]) + ' %', true))))) :
      el('p', {}, 'The run judges on its own machine alone.'),
    verdicts,
    el('div', {class: 'charts'}, shown.slice(0, 64).map((n) => chart(n, series[n] ? [{name: n, ...series[n]}] : []))));
}
