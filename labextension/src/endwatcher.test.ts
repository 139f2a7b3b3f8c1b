import { beforeEach, describe, expect, it } from 'vitest';

import { EndWatcher, PATIENCE } from './endwatcher';
import { session, status, view } from './testdocuments';
import { parseView } from './view';

describe('EndWatcher', () => {
  let watcher: EndWatcher;
  beforeEach(() => {
    watcher = new EndWatcher();
  });

  /** Return the kernels that are told of when these sessions are there, in milliseconds. */
  function told(now: number, sessions: object[], fields: object = {}): Array<[string, boolean]> {
    const kernels = sessions.length === 0 ? {} : { kernel: '0123456789ab' };
    const said = parseView(view({ status: status(...sessions), kernels, ...fields }));
    return watcher.follow(said, now).map(end => [end.kernel, end.session.lingering]);
  }

  it('tells of an end once, when the kernel has had time to follow', () => {
    expect(told(0, [session()])).toEqual([]);
    expect(told(1, [])).toEqual([]);
    expect(watcher.isWaiting).toBe(true);
    expect(told(PATIENCE, [])).toEqual([]);
    expect(told(1 + PATIENCE, [])).toEqual([['kernel', false]]);
    expect(told(2 + 2 * PATIENCE, [])).toEqual([]);
    expect(watcher.isWaiting).toBe(false);
  });

  it('tells of a session that lingers', () => {
    expect(told(0, [session()])).toEqual([]);
    expect(told(1, [session({ lingering: true })], { kernels: {} })).toEqual([]);
    expect(told(1 + PATIENCE, [session({ lingering: true })], { kernels: {} })).toEqual([['kernel', true]]);
  });

  it('tells nothing of a kernel that gets another session', () => {
    expect(told(0, [session()])).toEqual([]);
    expect(told(1, [])).toEqual([]);
    const another = { kernels: { kernel: 'another' } };
    expect(told(2, [session({ id: 'another' })], another)).toEqual([]);
    expect(told(2 + PATIENCE, [session({ id: 'another' })], another)).toEqual([]);
  });

  it('tells nothing while what is not listed may be there', () => {
    expect(told(0, [session()])).toEqual([]);
    expect(told(1, [])).toEqual([]);
    expect(told(PATIENCE, [], { gateway: { state: 'away', message: 'it is away.' } })).toEqual([]);
    expect(told(2 * PATIENCE, [])).toEqual([]);
    expect(told(2 * PATIENCE + 1, [session()])).toEqual([]);
  });

  it('tells nothing while the executor of the session is away, and heeds no other', () => {
    const on =
      (...devices: object[]) =>
      (sessions: object[]) => ({
        status: { ...status(...sessions), devices },
        ...(sessions.length === 0 ? { kernels: {} } : {})
      });
    const device = (name: string, available: boolean) => ({
      name,
      available,
      message: available ? null : 'it is away.',
      used_bytes: 0
    });
    const own = [session({ device: 'cuda:0' })];
    const away = on(device('cuda:0', false), device('cuda:1', true));
    const elsewhere = on(device('cuda:0', true), device('cuda:1', false));
    expect(told(0, own, elsewhere(own))).toEqual([]);
    expect(told(1, [], away([]))).toEqual([]);
    expect(told(1 + PATIENCE, [], away([]))).toEqual([]);
    expect(told(2 + PATIENCE, [], on(device('cuda:1', true))([]))).toEqual([]);
    expect(told(3 + PATIENCE, [], elsewhere([]))).toEqual([]);
    expect(told(3 + 2 * PATIENCE, [], elsewhere([]))).toEqual([['kernel', false]]);
  });

  it('tells nothing of what a restart has left', () => {
    expect(told(0, [session()])).toEqual([]);
    expect(told(1, [session({ lingering: true, restarted: true })])).toEqual([]);
    expect(told(1 + PATIENCE, [session({ lingering: true, restarted: true })])).toEqual([]);
  });

  it('forgets the sessions of another user', () => {
    expect(told(0, [session()])).toEqual([]);
    const grace = { user: { name: 'grace', admin: false } };
    expect(told(1, [], grace)).toEqual([]);
    expect(told(1 + PATIENCE, [], grace)).toEqual([]);
  });
});
