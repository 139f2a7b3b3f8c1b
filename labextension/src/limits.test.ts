import { describe, expect, it } from 'vitest';

import { readLimits, readPolicies, typedLimit } from './limits';

describe('readLimits', () => {
  it('reads the values of each user', () => {
    const share = { value: 2, source: 'put: user ada' };
    const users = { ada: { memory: { value: '25%', source: 'put: default' }, share, sessions: { value: null } } };
    expect(readLimits({ users }).get('ada')).toEqual({ memory: '25%', share: 2, sessions: null, byHand: ['share'] });
  });

  it.each([null, {}, { users: 3 }])('reads %j as nobody', answer => {
    expect(readLimits(answer).size).toBe(0);
  });
});

describe('readPolicies', () => {
  it('reads names', () => {
    expect(readPolicies({ policies: ['fair', 'fifo'] })).toEqual(['fair', 'fifo']);
    expect(readPolicies(null)).toEqual([]);
  });
});

describe('typedLimit', () => {
  it('keeps amounts with units, and what is wrong, as text', () => {
    expect(typedLimit('memory', ' 8 GiB ')).toBe('8 GiB');
    expect(typedLimit('memory', '25%')).toBe('25%');
    expect(typedLimit('memory', '1024')).toBe(1024);
    expect(typedLimit('share', '1.5')).toBe(1.5);
    expect(typedLimit('share', 'lots')).toBe('lots');
    expect(typedLimit('sessions', '')).toBe(null);
  });
});
