import { describe, expect, it } from 'vitest';

import { COLOURS, userColours } from './palette';

const names = (count: number) => Array.from({ length: count }, (_, index) => `student${index}`);

function luminance(colour: string): number {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map(start => {
    const value = parseInt(colour.slice(start, start + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

describe('COLOURS', () => {
  it('are 50, all different', () => {
    expect(new Set(COLOURS).size).toBe(50);
  });

  it.each(COLOURS)('has a contrast of 3 to 1 on white and on the dark theme: %s', colour => {
    expect(1.05 / (luminance(colour) + 0.05)).toBeGreaterThanOrEqual(3);
    expect((luminance(colour) + 0.05) / (luminance('#111111') + 0.05)).toBeGreaterThanOrEqual(3);
  });
});

describe('userColours', () => {
  it.each([1, 3, 6, 30, 50])('gives each of %i users a colour of their own', count => {
    expect(new Set(userColours(names(count)).values()).size).toBe(count);
  });

  it('does not depend on the order of names', () => {
    const one = userColours(names(30));
    const other = userColours(names(30).reverse());
    expect([...one.keys()].every(name => one.get(name) === other.get(name))).toBe(true);
  });

  it('gives few users the colours that differ most', () => {
    expect([...userColours(names(3)).values()].every(colour => COLOURS.indexOf(colour) < 6)).toBe(true);
  });

  it('goes on with more users than colours', () => {
    expect([...userColours(names(120)).values()].every(colour => COLOURS.includes(colour))).toBe(true);
  });
});
