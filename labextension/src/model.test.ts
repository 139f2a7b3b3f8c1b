import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { DeviceModel } from './model';
import { notice } from './notice';
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

  it('is none while all is well', () => {
    model.receive(view());
    expect(text()).toBeNull();
  });

  it('tells a server without the extension from one that went away', () => {
    model.lose(false);
    expect(text()).toContain('Is its extension sharedkernel.serverextension enabled?');
    model.receive(view());
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
