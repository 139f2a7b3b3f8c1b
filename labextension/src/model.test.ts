import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { DeviceModel } from './model';
import { drainNotice, notice } from './notice';
import { english, session, status, view } from './testdocuments';

let model: DeviceModel;
let told: number;

beforeEach(() => {
  vi.useFakeTimers();
  model = new DeviceModel();
  told = 0;
  model.changed.connect(() => {
    told += 1;
  });
});

afterEach(() => {
  model.dispose();
  vi.useRealTimers();
});

describe('what is known', () => {
  it('is the session behind the kernel that is looked at', () => {
    model.receive(view());
    expect(model.currentSession).toBeNull();
    model.currentKernel = 'kernel';
    expect(model.currentSession?.id).toBe('0123456789ab');
    model.currentKernel = 'another';
    expect(model.currentSession).toBeNull();
    expect([model.kernelOf('0123456789ab'), model.kernelOf('elsewhere')]).toEqual(['kernel', undefined]);
  });

  it('keeps what has not changed as it is, so that nobody draws it again', () => {
    const other = session({ id: 'other' });
    model.receive(view({ status: status(session(), other) }));
    const [first, second] = model.view.status!.sessions;
    model.receive(view({ status: status(session({ state: 'running' }), other) }));
    expect(model.view.status!.sessions[0]).not.toBe(first);
    expect(model.view.status!.sessions[1]).toBe(second);
  });

  it('stays while something is wrong', () => {
    model.receive(view());
    for (const spoil of [
      () => model.receive('garbage'),
      () => model.lose(true),
      () => model.receive('{"version": 9}')
    ]) {
      spoil();
      expect(model.isLive).toBe(false);
      expect(model.view.status?.sessions).toHaveLength(1);
    }
    model.receive(view());
    expect(model.isLive).toBe(true);
  });
});

describe('what is told', () => {
  it('is the first at once, then one per interval, and always the last', () => {
    for (let number = 0; number < 10; number++) {
      model.receive(view({ status: status(session({ iterations: number })) }));
    }
    expect(told).toBe(1);
    vi.advanceTimersByTime(model.refreshInterval);
    expect(told).toBe(2);
    expect(model.view.status?.sessions[0]?.iterations).toBe(9);
    vi.advanceTimersByTime(10 * model.refreshInterval);
    expect(told).toBe(2);
  });

  it('is nothing after the end', () => {
    model.receive(view());
    model.receive(view());
    model.dispose();
    vi.advanceTimersByTime(10_000);
    expect(told).toBe(1);
  });
});

describe('the notice', () => {
  const text = () => notice(model, english)?.text ?? null;

  it('tells a server without the extension from one that went away', () => {
    model.lose(false);
    expect(text()).toContain('If the package was just installed, stop the server and start it again.');
    model.receive(view());
    expect(text()).toBeNull();
    model.lose(false);
    expect(text()).toContain('does not answer');
  });

  it.each([
    [{ state: 'away', message: 'no \u202egateway answers' }, 'no \\u{202e}gateway answers', true],
    [{ state: 'refused', message: 'ask for a token' }, 'ask for a token', false],
    [{ state: 'unconfigured', message: 'run it' }, 'run it', false],
    [{ state: 'connecting', message: null }, 'Connecting', true]
  ])('passes on what the server says of the gateway: %j', (gateway, words, passing) => {
    model.receive(view({ gateway }));
    expect(text()).toContain(words);
    expect(notice(model, english)?.passing).toBe(passing);
  });

  it.each([
    ['{"version": 2}', 'different versions'],
    ['<html>', 'does not understand']
  ])('explains %s', (said, words) => {
    model.receive(said);
    expect(text()).toContain(words);
  });
});

describe('when figures were those of now', () => {
  const at = (time: string) => vi.setSystemTime(new Date(`2026-11-28T${time}`));
  const said = (since: string | null) => ({
    state: 'no_figures',
    message: 'no executor answers; start one.',
    since: since === null ? null : new Date(`2026-11-28T${since}`).getTime() / 1000
  });
  const text = () => notice(model, english)?.text ?? null;

  it('is nothing while they are, or were never', () => {
    at('13:45:00');
    model.receive(view({ gateway: said('13:44:10'), status: null }));
    expect(model.asOf).toBeNull();
    expect(text()).toBe('No figures since 13:44:10: no executor answers; start one. Notebooks keep their variables.');
    model.receive(view());
    expect([model.asOf, text()]).toEqual([null, null]);
  });

  it('is the moment that the gateway names, or that of the first word of it', () => {
    model.receive(view());
    at('13:45:36');
    model.receive(view({ gateway: said(null) }));
    expect(text()).toContain('No figures since 13:45:36');
    at('13:45:37');
    model.receive(view({ gateway: said('13:45:34') }));
    expect(model.asOf).toEqual(new Date('2026-11-28T13:45:34'));
    expect(model.view.status?.sessions).toHaveLength(1);
  });

  it('stays that of the figures when something else goes wrong', () => {
    model.receive(view());
    at('13:00:00');
    model.lose(true);
    at('13:05:00');
    model.receive(view({ gateway: said('13:04:00') }));
    expect([model.asOf, model.problemSince]).toEqual([new Date('2026-11-28T13:00:00'), null]);
    expect(text()).toContain('No figures since 13:04:00');
    at('13:10:00');
    model.lose(true);
    expect([model.asOf, model.problemSince]).toEqual([
      new Date('2026-11-28T13:00:00'),
      new Date('2026-11-28T13:10:00')
    ]);
  });
});

describe('a gateway that drains', () => {
  const words = (draining: Record<string, unknown>) => {
    model.receive(view({ status: { ...status(session()), draining } }));
    return drainNotice(model.view.status!, english);
  };

  it('stops once its cells have ended', () => {
    vi.setSystemTime(new Date('2026-11-28T13:45:00'));
    const until = new Date('2026-11-28T13:55:34').getTime() / 1000;
    expect(words({ cells: 2, until })).toBe(
      'The gateway stops once the 2 cells that run have ended, at 13:55:34 at the latest. No new notebooks start; those that are open keep their variables.'
    );
    expect(words({ cells: 1, until: null })).toContain('stops once the cell that runs has ended. No new');
    expect(words({ cells: 0, until })).toContain('The gateway stops now.');
    model.receive(view());
    expect(drainNotice(model.view.status!, english)).toBeNull();
  });
});
