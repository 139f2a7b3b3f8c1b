import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { Connection } from './connection';

class Channel {
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: (() => void) | null = null;
  closed = false;

  close(): void {
    this.closed = true;
    this.onclose?.();
  }
}

let channels: Channel[];
let texts: string[];
let losses: boolean[];
let connection: Connection;

const last = () => channels[channels.length - 1]!;

beforeEach(() => {
  vi.useFakeTimers();
  [channels, texts, losses] = [[], [], []];
  connection = new Connection({
    open: () => {
      channels.push(new Channel());
      return last();
    },
    onText: text => texts.push(text),
    onLost: heard => losses.push(heard)
  });
});

afterEach(() => {
  connection.dispose();
  vi.useRealTimers();
});

describe('Connection', () => {
  it('passes on texts', () => {
    last().onmessage?.({ data: 'one' });
    last().onmessage?.({ data: new ArrayBuffer(1) });
    expect(texts).toEqual(['one']);
  });

  it('opens again for as long as it takes, ever more slowly, and soon again once something has arrived', () => {
    for (let attempt = 0; attempt < 20; attempt++) {
      last().close();
      vi.advanceTimersByTime(6500);
    }
    expect(channels).toHaveLength(21);
    last().close();
    vi.advanceTimersByTime(3400);
    expect(channels).toHaveLength(21);
    expect(losses).toHaveLength(21);
    vi.advanceTimersByTime(3100);
    last().onmessage?.({ data: 'back' });
    last().close();
    vi.advanceTimersByTime(700);
    expect(channels).toHaveLength(23);
    expect(losses.slice(-2)).toEqual([false, true]);
  });

  it('does nothing after its end', () => {
    const [first] = channels;
    connection.dispose();
    vi.advanceTimersByTime(60_000);
    first!.onmessage?.({ data: 'late' });
    expect([first!.closed, channels.length, texts, losses]).toEqual([true, 1, [], []]);
  });
});
