import { describe, expect, it } from 'vitest';

import type { IKeptCell } from './api';
import { ICell, match, show } from './outputs';

function cell(code: string, type = 'code'): ICell & { shown: unknown[] } {
  const shown: unknown[] = [];
  return {
    type,
    executionCount: null,
    executionState: 'idle',
    outputs: { fromJSON: outputs => shown.push(outputs) },
    sharedModel: { getSource: () => code },
    trusted: false,
    shown
  };
}

function run(id: string, code: string, fields: Partial<IKeptCell> = {}): IKeptCell {
  return { id, code, executionCount: 1, outputs: [], open: false, missed: true, question: null, ...fields };
}

describe('match', () => {
  it('finds the last run of each cell', () => {
    const [a, b] = [cell('a'), cell('b')];
    const runs = [run('1', 'a'), run('2', 'b'), run('3', 'a'), run('4', 'deleted since')];
    expect([...match([a, b], runs)].map(([found, { id }]) => [found.sharedModel.getSource(), id])).toEqual([
      ['a', '3'],
      ['b', '2']
    ]);
  });

  it('guesses only where a cell still runs', () => {
    const twins = [cell('a'), cell('a')];
    expect(match(twins, [run('1', 'a')]).size).toBe(0);
    expect(match(twins, [run('1', 'a', { open: true })]).get(twins[0]!)?.id).toBe('1');
  });

  it('leaves text alone', () => {
    expect(match([cell('a', 'markdown')], [run('1', 'a')]).size).toBe(0);
  });
});

describe('show', () => {
  it('makes a cell look like one that runs, then like one that ran', () => {
    const shown = cell('a');
    show(shown, run('1', 'a', { open: true, executionCount: 4 }));
    expect([shown.executionState, shown.executionCount, shown.trusted]).toEqual(['running', null, true]);
    show(shown, run('1', 'a', { executionCount: 4 }));
    expect([shown.executionState, shown.executionCount, shown.shown.length]).toEqual(['idle', 4, 2]);
  });
});
