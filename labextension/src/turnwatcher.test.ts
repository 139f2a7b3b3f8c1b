import { beforeEach, describe, expect, it } from 'vitest';

import { session, status, view } from './testdocuments';
import { LONG_RUN, LONG_WAIT, TurnWatcher } from './turnwatcher';
import { parseView } from './view';

describe('TurnWatcher', () => {
  let watcher: TurnWatcher;
  beforeEach(() => {
    watcher = new TurnWatcher();
  });

  /** Return what is told when a session is in a state, in milliseconds. */
  function told(now: number, state: string, fields: object = {}): Array<[string, number]> {
    const document = parseView(view({ status: status(session({ state, ...fields })) })).status;
    return document === null ? [] : watcher.follow(document, 'ada', now).map(each => [each.kind, each.milliseconds]);
  }

  it('tells of a turn after a long wait, once in a cell', () => {
    expect(told(0, 'idle')).toEqual([]);
    expect(told(1, 'queued', { queue_position: 1 })).toEqual([]);
    expect(told(LONG_WAIT, 'ready')).toEqual([]);
    expect(told(1 + LONG_WAIT, 'running')).toEqual([['turn', LONG_WAIT]]);
    expect(told(2 + LONG_WAIT, 'queued')).toEqual([]);
    expect(told(3 + 3 * LONG_WAIT, 'running')).toEqual([]);
  });

  it('tells of the end of a long run, with its pauses', () => {
    expect(told(0, 'running')).toEqual([]);
    expect(told(LONG_RUN / 2, 'queued')).toEqual([]);
    expect(told(LONG_RUN, 'idle')).toEqual([['end', LONG_RUN]]);
    expect(told(LONG_RUN + 1, 'idle')).toEqual([]);
  });

  it('tells nothing of short waits and runs, and of cells that only waited', () => {
    expect(told(0, 'queued')).toEqual([]);
    expect(told(LONG_WAIT - 1, 'running')).toEqual([]);
    expect(told(LONG_WAIT + LONG_RUN - 2, 'idle')).toEqual([]);
    expect(told(LONG_WAIT + LONG_RUN, 'waiting')).toEqual([]);
    expect(told(LONG_WAIT + 3 * LONG_RUN, 'idle')).toEqual([]);
  });

  it('tells nothing of others, and of sessions that were shut down or are gone', () => {
    expect(told(0, 'running', { user: 'grace' })).toEqual([]);
    expect(told(LONG_RUN, 'idle', { user: 'grace' })).toEqual([]);
    expect(told(0, 'running')).toEqual([]);
    expect(told(LONG_RUN, 'idle', { lingering: true })).toEqual([]);
    expect(told(0, 'running')).toEqual([]);
    expect(told(1, 'running', { id: 'another' })).toEqual([]);
    expect(told(LONG_RUN, 'idle')).toEqual([]);
  });
});
