import { describe, expect, it } from 'vitest';

import { inOrder, isFound } from './notebookorder';
import { SessionWatch } from './sessionwatch';
import { english, session, status, view } from './testdocuments';
import { parseView } from './view';

const read = (...sessions: unknown[]) => parseView(view({ status: status(...sessions) })).status!;

const SESSIONS = read(
  session({ id: 'ended', lingering: true }),
  session({ id: 'away', user: 'grace', state: 'offloaded', notebook: 'b10.ipynb', persistent_bytes: 0 }),
  session({ id: 'idle', user: 'grace', notebook: 'b9.ipynb', persistent_bytes: 1 << 20 }),
  session({ id: 'second', state: 'queued', queue_position: 2, waiting_for: 'lane' }),
  session({ id: 'first', user: 'linus', state: 'queued', queue_position: 1, waiting_for: 'lane' }),
  session({ id: 'restored', user: 'linus', state: 'restoring' }),
  session({ id: 'runs', user: 'grace', state: 'running' })
).sessions;

const ids = (...parameters: Parameters<typeof inOrder>) => inOrder(...parameters).map(one => one.id);

describe('the order of notebooks', () => {
  it("has one's own first, then those that run, wait, do nothing", () => {
    expect(ids(SESSIONS, null, 'ada', null)).toEqual(['second', 'ended', 'runs', 'first', 'restored', 'idle', 'away']);
  });

  it('has the one in front before all others', () => {
    expect(ids(SESSIONS, null, 'ada', 'ended').slice(0, 3)).toEqual(['ended', 'second', 'runs']);
    expect(ids(SESSIONS, 'state', 'ada', 'ended')[0]).toBe('runs');
  });

  it('is what people choose', () => {
    const order = (column: 'state' | 'person') => ids(SESSIONS, column, 'ada', null).join(' ');
    expect(order('state')).toBe('runs first second restored idle away ended');
    expect(ids(SESSIONS, 'memory', 'ada', null)[0]).toBe('idle');
    expect(order('person')).toBe('second ended runs idle away first restored');
    expect(ids(SESSIONS, 'notebook', 'ada', null).slice(0, 2)).toEqual(['idle', 'away']);
  });

  it('finds people, notebooks and states', () => {
    const found = (search: string) => SESSIONS.filter(one => isFound(one, search, 'ada', english)).map(one => one.id);
    expect(found(' B9')).toEqual(['idle']);
    expect(found('you')).toEqual(['ended', 'second']);
    expect(found('2nd')).toEqual(['second']);
    expect(found('nobody')).toEqual([]);
  });
});

describe('what a page has seen', () => {
  const see = (watch: SessionWatch, now: number, fields: Record<string, unknown>) => {
    const [first] = watch.see(read(session(fields)), now).sessions;
    return [first!.computing, first!.waited_minutes];
  };
  const queued = { state: 'queued', queue_position: 1, waiting_for: 'lane' };

  it('tells who takes turns from who waits', () => {
    const watch = new SessionWatch();
    expect(see(watch, 0, queued)).toEqual([false, 0]);
    expect(see(watch, 59_000, queued)).toEqual([false, 0]);
    expect(see(watch, 60_000, queued)).toEqual([false, 1]);
    expect(see(watch, 61_000, { state: 'running' })).toEqual([true, 0]);
    expect(see(watch, 62_900, queued)).toEqual([true, 0]);
    expect(see(watch, 63_100, queued)).toEqual([false, 0]);
    expect(see(watch, 64_000, { ...queued, attained_service_seconds: 0.1 })).toEqual([true, 0]);
    expect(see(watch, 65_000, { ...queued, attained_service_seconds: 0.1 })).toEqual([true, 0]);
    expect(see(watch, 65_500, { ...queued, attained_service_seconds: 0.1, waiting_for: 'memory' })).toEqual([false, 0]);
    expect(see(watch, 66_000, { attained_service_seconds: 0.1 })).toEqual([false, 0]);
  });
});
