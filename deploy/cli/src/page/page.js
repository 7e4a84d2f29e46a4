'use strict';
(() => {
  const POLL_MS = 2000;
  const STALE_MS = 6000;
  const SVG = 'http://www.w3.org/2000/svg';
  const at = (id) => document.getElementById(id);
  const number = new Intl.NumberFormat('en');

  // All text of the rack comes through here, as text.
  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
    return made;
  }
  function svg(tag, attributes, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  function bytes(count) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let value = count, unit = 0;
    while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
    return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
  }
  const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.995 ? 1 : 0)} %`;
  function age(ms) {
    const s = Math.round(ms / 1000);
    if (s < 120) return `${s} s`;
    if (s < 7200) return `${Math.round(s / 60)} min`;
    return `${Math.round(s / 3600)} h`;
  }
  const colour = (node) => `hsl(${Math.round((node * 137.508 + 212) % 360)} 62% 52%)`;
  const list = (items) => items.join(', ');
  const sum = (items, of) => items.reduce((all, item) => all + of(item), 0);

  function table(target, heads, rows) {
    const head = el('tr', {}, ...heads.map(([text, kind]) => el('th', { scope: 'col', class: kind || '' }, text)));
    const body = rows.map((cells) => el('tr', {}, ...cells.map((cell, index) => {
      const kind = heads[index][1] || '';
      const inner = cell instanceof Node ? cell : String(cell);
      return index ? el('td', { class: kind }, inner) : el('th', { scope: 'row', class: kind }, inner);
    })));
    target.replaceChildren(el('thead', {}, head), el('tbody', {}, ...body));
  }

  // Written only when it has changed, so that a screen reader does not say it again.
  const shown = {};
  function whenChanged(name, what, draw) {
    const text = JSON.stringify(what);
    if (shown[name] === text) return;
    shown[name] = text;
    draw();
  }

  function findings(all) {
    const items = all.map(({ level, what, to_do, page }) => el('li', { class: level },
      el('span', { class: 'level' }, level === 'bad' ? '✕ bad' : level === 'warning' ? '! warning' : 'i note'), what,
      el('span', { class: 'to-do' }, 'To do: ', to_do, '. ', el('a', { href: `/docs/${page}` }, 'What this means'))));
    if (!items.length) items.push(el('li', { class: 'good' }, '✓ Nothing that this page can see.'));
    at('findings').replaceChildren(...items);
  }

  function chart(label, lines, top, format) {
    const width = 320, height = 92, left = 2, bottom = 14, up = 12;
    const oldest = 600000;
    const x = (ago) => left + (width - 2 * left) * (1 - Math.min(ago, oldest) / oldest);
    const y = (value) => up + (height - bottom - up) * (1 - value / top);
    const made = svg('svg', { class: 'chart', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label });
    made.append(svg('path', { class: 'axis', d: `M${left} ${height - bottom}H${width - left}M${left} ${up}H${width - left}` }));
    for (const { kind, points } of lines) {
      let path = '', drawn = false;
      for (const [ago, value] of points) {
        if (value === null) { drawn = false; continue; }
        path += `${drawn ? 'L' : 'M'}${x(ago).toFixed(1)} ${y(value).toFixed(1)}`;
        // A point alone has no length: it gets some.
        if (!drawn) path += 'h.1';
        drawn = true;
      }
      made.append(svg('path', { class: `line ${kind}`, d: path || 'M0 0' }));
    }
    const texts = el('div', { class: 'chart-texts hint', 'aria-hidden': 'true' });
    texts.append(`Line at the top: ${format(top)}. From 10 minutes ago on the left to now.`);
    return [made, texts];
  }

  function rates(history) {
    const last = history[history.length - 1];
    const points = (name) => history.map((rate) => [rate.ago_ms, rate[name]]);
    const known = history.filter((rate) => rate.hit_rate !== null);
    const now = last && last.hit_rate !== null ? last.hit_rate : null;
    at('hit-now').textContent = now === null ? 'no lookups now' : percent(now);
    const mean = known.length ? sum(known, (rate) => rate.hit_rate) / known.length : null;
    const words = mean === null ? 'No lookups in the last minutes.' : `Hit rate of the last minutes: mean ${percent(mean)}.`;
    at('hit-chart').replaceChildren(...chart(words, [{ kind: 'one', points: points('hit_rate') }], 1, percent));
    const kinds = [['published_bytes', 'one', 'into the pool'], ['fetched_bytes', 'two', 'out of it'], ['restored_bytes', 'three', 'from drives']];
    at('rates').replaceChildren(...kinds.map(([name, kind, label]) =>
      el('div', { class: kind }, el('dt', {}, label), el('dd', {}, last ? `${bytes(last[name])}/s` : '–'))));
    const top = Math.max(1024, ...kinds.flatMap(([name]) => history.map((rate) => rate[name])));
    const lines = kinds.map(([name, kind]) => ({ kind, points: points(name) }));
    const label = `Bandwidth of the last minutes, ${bytes(top)} a second at most.`;
    at('bytes-chart').replaceChildren(...chart(label, lines, top, (value) => `${bytes(value)}/s`));
  }

  const STATES = { joined: 'good', left: 'quiet', dead: 'quiet', quarantined: 'bad', unreadable: 'bad' };
  const SIGNS = { good: '● ', quiet: '○ ', bad: '✕ ', warning: '! ' };
  function nodes(status, beats) {
    const rows = status.nodes.map((node) => {
      const kind = STATES[node.state] || 'warning';
      const beat = beats.find((it) => it.node === node.node);
      const gone = kind === 'quiet';
      const { summary } = node;
      const rate = summary && summary.lookup_blocks ? percent(summary.lookup_hits / summary.lookup_blocks) : '–';
      return [node.node, el('span', { title: node.host }, node.host), el('span', { class: `state ${kind}` }, SIGNS[kind] + node.state),
        gone || !beat ? '–' : beat.age_ms < 1000 ? 'now' : `${age(beat.age_ms)} ago`, node.incarnation, node.chunks,
        number.format(node.blocks), bytes(node.block_bytes), rate];
    });
    table(at('nodes'), [['Node'], ['Host', 'left host'], ['State', 'left'], ['Heartbeat'], ['Life', 'less'],
      ['Chunks', 'less'], ['Blocks', 'less'], ['Bytes'], ['Hits since joined', 'less']], rows);
    if (!rows.length) at('nodes').replaceChildren(el('caption', {}, 'No node has joined yet.'));
  }

  let cells = [], chosen = null, columns = 1, side = 1;
  function describe(cell, perCell) {
    const { heat, first, chunks } = cell;
    const which = chunks === 1 ? `Chunk ${first}` : `Chunks ${first} to ${first + chunks - 1}`;
    const whose = cell.owner === null ? 'free' : cell.owners > 1 ? `most of node ${cell.owner}, ${cell.owners} nodes in all` : `of node ${cell.owner}`;
    const free = cell.free && cell.owner !== null ? `, ${cell.free} free` : '';
    const bad = cell.unreadable + cell.failed;
    const broken = bad ? `, ${cell.failed} of failed memory, ${cell.unreadable} unreadable` : '';
    const blocks = cell.owner === null ? '' : `: ${bytes(heat.bytes)} of blocks; ${heat.hot} hot, ${heat.warm} warm, ${heat.cold} cold, ${heat.unused} unused`;
    return `${which}, ${cell.owner === null && bad ? 'out of use' : whose}${free}${broken}${blocks}`;
  }
  function choose(index) {
    chosen = Math.max(0, Math.min(cells.length - 1, index));
    at('cell').textContent = describe(cells[chosen]);
    const mark = at('map').querySelector('.chosen-cell');
    if (mark) place(mark, chosen);
  }
  function place(mark, index) {
    mark.setAttribute('x', (index % columns) * side);
    mark.setAttribute('y', Math.floor(index / columns) * side);
  }
  function map(seen) {
    const { status, map: all, blocks_age_ms } = seen;
    cells = all.cells;
    const perCell = all.chunks_per_cell === 1 ? 'one chunk' : `${all.chunks_per_cell} chunks`;
    const old = blocks_age_ms === null ? 'Not all blocks have been looked at yet.' : `Blocks were looked at within the last ${age(Math.max(blocks_age_ms, 1000))}.`;
    at('map-hint').textContent = `A cell is ${perCell} of ${bytes(status.chunk_bytes)}. Its colour is the node that owns it. ` +
      `The strong part is the share of its blocks that were used lately (hot or warm). ${old}`;
    const width = Math.max(200, at('map').clientWidth);
    const room = Math.sqrt(width * (width < 500 ? 300 : 190) / Math.max(1, cells.length));
    side = Math.max(9, Math.min(26, Math.floor(room)));
    columns = Math.max(1, Math.floor(width / side));
    const inner = side - 2, height = Math.ceil(cells.length / columns) * side;
    const drawn = svg('svg', { viewBox: `0 0 ${columns * side} ${height}`, width: columns * side, height, 'aria-hidden': 'true' });
    drawn.style.width = `${columns * side}px`;
    cells.forEach((cell, index) => {
      const x = (index % columns) * side + 1, y = Math.floor(index / columns) * side + 1;
      const box = { x, y, width: inner, height: inner, rx: 2, 'data-cell': index };
      if (cell.owner === null) {
        drawn.append(svg('rect', { ...box, class: cell.unreadable + cell.failed ? 'unreadable' : 'free' }));
        return;
      }
      const { heat } = cell;
      const blocks = heat.hot + heat.warm + heat.cold + heat.unused;
      const share = blocks ? (heat.hot + heat.warm) / blocks : 0;
      const filled = Math.round(inner * share * 10) / 10;
      drawn.append(svg('rect', { ...box, class: 'pale', fill: colour(cell.owner) }));
      if (filled) drawn.append(svg('rect', { ...box, y: y + inner - filled, height: filled, fill: colour(cell.owner) }));
    });
    const mark = svg('rect', { class: 'chosen-cell', width: side, height: side, rx: 3 });
    if (chosen === null) mark.setAttribute('x', -99);
    drawn.append(mark);
    at('map').replaceChildren(drawn);
    if (chosen !== null) choose(chosen);
    const swatch = (kind, fill) => svg('svg', { viewBox: '0 0 12 12', 'aria-hidden': 'true' },
      svg('rect', { x: 1, y: 1, width: 10, height: 10, rx: 2, class: kind, ...(fill ? { fill } : {}) }));
    const hosts = all.owners.map(({ node }) => el('li', {}, swatch('', colour(node)), `node ${node}`));
    hosts.push(el('li', {}, swatch('free'), 'free'));
    if (cells.some((cell) => cell.unreadable + cell.failed)) hosts.push(el('li', {}, swatch('unreadable'), 'out of use'));
    at('legend').replaceChildren(...hosts);
    table(at('owners'), [['Node'], ['Chunks'], ['Bytes of blocks'], ['Hot'], ['Warm'], ['Cold'], ['Unused']],
      [...all.owners.map(({ node, chunks, heat }) => [node, number.format(chunks), bytes(heat.bytes),
        ...['hot', 'warm', 'cold', 'unused'].map((kind) => number.format(heat[kind]))]),
      ['free', number.format(status.chunks_free), '', '', '', '', '']]);
  }

  function tiers(status, figures) {
    const used = sum(status.nodes, (node) => node.block_bytes);
    const drives = status.agents.filter((agent) => agent.drive_capacity_bytes);
    const rows = [['G3 pool', number.format(sum(status.nodes, (node) => node.blocks)), bytes(used), bytes(status.chunks * status.chunk_bytes)]];
    rows.push(drives.length
      ? ['G4 drives', number.format(sum(drives, (it) => it.drive_blocks)), bytes(sum(drives, (it) => it.drive_used_bytes)), bytes(sum(drives, (it) => it.drive_capacity_bytes))]
      : ['G4 drives', '–', 'no drives', '–']);
    table(at('tiers'), [['Tier, all nodes'], ['Blocks'], ['Bytes'], ['of']], rows);
    const ways = figures.filter((it) => it.name === 'tier_promotions_total' || it.name === 'tier_demotions_total');
    const some = ways.filter((it) => it.value);
    const text = some.map((it) => `${it.labels.from} to ${it.labels.to} ${number.format(it.value)}`);
    at('moves').replaceChildren(el('p', { class: 'hint' }, !ways.length
      ? 'Agents know what this host has moved between tiers; a lock manager does not.'
      : text.length ? `Blocks that this host has moved since it joined: ${list(text)}.` : 'This host has moved no blocks between tiers.'));
  }

  function drives(status, figures) {
    const rows = status.agents.map((agent) => [agent.node, el('span', { class: `state ${agent.state === 'serves' ? 'good' : agent.state === 'silent' ? 'bad' : 'warning'}` }, agent.state),
      agent.drive_capacity_bytes ? `${bytes(agent.drive_used_bytes)} of ${bytes(agent.drive_capacity_bytes)}` : 'none',
      number.format(agent.announced_blocks), bytes(agent.backlog_bytes)]);
    if (!rows.length) {
      at('drives').replaceChildren(el('p', {}, 'No agent has served drives of this region.'));
      return;
    }
    const made = el('table');
    table(made, [['Node'], ['Agent', 'left'], ['Used'], ['Blocks found', 'less'], ['Waits', 'less']], rows);
    const own = figures.filter((it) => it.name === 'rackline_drive_up').map((it) => `${it.labels.drive} ${it.value ? 'open' : 'not open'}`);
    at('drives').replaceChildren(made, ...(own.length ? [el('p', { class: 'hint' }, `On this host: ${list(own)}.`)] : []));
  }

  function locks(seen, figures) {
    const { status, waits } = seen;
    const manager = status.lock_manager, lines = [];
    const value = (name) => (figures.find((it) => it.name === name) || {}).value;
    if (manager) {
      const does = manager.serving && manager.alive ? (manager.waiting_for === null ? 'works' : `waits for node ${manager.waiting_for}`) : 'does not work';
      lines.push(`Lock manager on node ${manager.node}, term ${manager.term}: ${does}.`);
    } else lines.push('No lock manager has run.');
    const grants = value('rackline_manager_grants_total');
    if (grants !== undefined) lines.push(`Locks that this lock manager has granted: ${number.format(grants)}.`);
    if (waits === null) lines.push('Who waits is not known: locks of this region need no lock manager.');
    else if (!waits.length) lines.push('No node has wanted or held one lock for more than a second.');
    else {
      const locks = [...new Set(waits.map((wait) => wait.lock))];
      lines.push(...locks.map((lock) => `Lock ${lock} is wanted or held by ${list(waits.filter((it) => it.lock === lock).map((it) => `node ${it.node} for ${age(it.for_ms)}`))}.`));
    }
    at('locks').replaceChildren(...lines.map((line) => el('p', {}, line)));
  }

  function tenants(status, prefixes, { largest, others, others_blocks: rest }) {
    const parts = [];
    if (largest.length) {
      const sizes = el('table');
      const rows = largest.map(({ namespace, blocks, bytes: taken }) => [namespace, number.format(blocks), bytes(taken)]);
      if (others) rows.push([`${number.format(others)} others`, number.format(rest.blocks), bytes(rest.bytes)]);
      table(sizes, [['Namespace'], ['Blocks in the pool'], ['Bytes']], rows);
      parts.push(sizes);
    }
    if (prefixes.length) {
      const made = el('table');
      table(made, [['First block'], ['Namespace'], ['In node', 'less'], ['Used by nodes']],
        prefixes.map(({ key, namespace, owner, nodes }) => [el('code', {}, key), namespace, owner, nodes]));
      parts.push(made);
    } else parts.push(el('p', {}, 'No first block of a prompt has been used.'));
    const asked = status.directives.map((it) => `${it.directive} of ${it.namespace === null ? 'all' : it.namespace}${it.percent === null ? '' : `, ${it.percent} %`}`);
    parts.push(el('p', { class: 'hint' }, asked.length ? `In force: ${list(asked)}.` : 'No pin or clear is in force.'));
    at('tenants').replaceChildren(...parts);
  }

  function events(all) {
    at('events').replaceChildren(...all.map((event) => el('li', {},
      el('span', { class: 'ago' }, `${age(event.ago_ms)} ago`), el('span', { class: event.level }, event.what))));
  }

  let answered = null, looked = null, error = null, every = 2000, worst = null, count = 0;
  function pill() {
    const now = performance.now();
    const silent = answered === null ? null : now - answered;
    const old = looked === null ? null : now - looked;
    let note = '';
    if (silent === null) note = now > STALE_MS ? `No answer for ${age(now)}.` : '';
    else if (silent > STALE_MS) note = `No answer for ${age(silent)}. What you see is from then.`;
    else if (error !== null) note = `The rack cannot be looked at: ${error}`;
    else if (old !== null && old > 3 * every + 4000) note = `The program has not looked at the rack for ${age(old)}. What you see is from then.`;
    const stale = at('stale');
    if (stale.textContent !== note) stale.textContent = note;
    stale.hidden = note === '';
    document.body.classList.toggle('stale', note !== '');
    const [kind, text] = note ? ['bad', 'old data'] : answered === null ? ['', 'no answer yet']
      : worst === 'bad' ? ['bad', `${count} wrong`] : worst === 'warning' ? ['warning', `${count} to look at`] : ['good', 'all well'];
    const state = at('state');
    state.className = `pill ${kind}`;
    if (state.textContent !== text) state.textContent = text;
    document.title = note ? 'Rackline: old data' : `Rackline: ${text}`;
  }

  let last = null;
  function draw(rack) {
    last = rack;
    const now = performance.now();
    answered = now;
    error = rack.error;
    every = rack.look_every_ms;
    looked = rack.looked_ago_ms === null ? null : now - rack.looked_ago_ms;
    const counted = rack.findings.filter((it) => it.level !== 'note');
    worst = counted.length ? counted[0].level : null;
    count = counted.length;
    whenChanged('findings', rack.findings, () => findings(rack.findings));
    rates(rack.history);
    events(rack.events);
    const { seen } = rack;
    if (seen) {
      at('whose').textContent = `${seen.status.region}, seen by the ${rack.program === 'agent' ? 'agent' : 'lock manager'} of node ${rack.node}`;
      nodes(seen.status, seen.beats);
      whenChanged('map', [seen.map, seen.blocks_age_ms, at('map').clientWidth], () => map(seen));
      tiers(seen.status, rack.figures);
      drives(seen.status, rack.figures);
      locks(seen, rack.figures);
      tenants(seen.status, seen.prefixes, seen.tenants);
    }
    pill();
  }

  async function ask() {
    if (document.hidden) return;
    try {
      const answer = await fetch('/rack.json', { cache: 'no-store', signal: AbortSignal.timeout(5000) });
      if (answer.ok) draw(await answer.json());
    } catch (failure) {
      // Told by its age.
      if (!(failure instanceof TypeError || failure instanceof DOMException)) throw failure;
    }
    pill();
  }

  at('map').addEventListener('click', (event) => {
    const index = event.target.getAttribute('data-cell');
    if (index !== null) choose(Number(index));
  });
  at('map').addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (step === undefined || !cells.length) return;
    event.preventDefault();
    choose(chosen === null ? 0 : chosen + step);
  });
  addEventListener('resize', () => last && last.seen && map(last.seen));
  document.addEventListener('visibilitychange', ask);
  setInterval(ask, POLL_MS);
  setInterval(pill, 1000);
  ask();
})();
