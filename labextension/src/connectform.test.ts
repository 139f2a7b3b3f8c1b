import { describe, expect, it } from 'vitest';

import { readCommand } from './connectform';

describe('readCommand', () => {
  it('finds what a command of the page holds', () => {
    const command = 'pip install xsharedkernel install --gateway-url https://gpu:8585 --user --fingerprint ab12';
    expect(readCommand(command)).toEqual({ url: 'https://gpu:8585', token: '', fingerprint: 'ab12' });
    expect(readCommand(`${command} --token a1-b2`)?.token).toBe('a1-b2');
    expect(readCommand(`${command} --token -`)?.token).toBe('');
  });

  it('leaves addresses alone', () => {
    expect(readCommand('https://gpu.example.org/a--token')).toBeNull();
  });
});
