/** Documents as the Jupyter server sends them, for tests. */

import type { TranslationBundle } from '@jupyterlab/translation';

/** English, with what stands for `%1`, `%2` … put in. */
export const english = {
  __: (text: string, ...values: unknown[]) =>
    text.replace(/%(\d)/g, (_, number: string) => String(values[Number(number) - 1]))
} as unknown as TranslationBundle;

export function session(fields: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    id: '0123456789ab',
    user: 'ada',
    state: 'idle',
    notebook: '/home/ada/train.ipynb',
    persistent_bytes: 1024,
    framework_bytes: 4096,
    ephemeral_bytes: 512,
    queue_position: null,
    waiting_for: null,
    ...fields
  };
}

export function status(...sessions: unknown[]): Record<string, unknown> {
  return {
    device: { name: 'host', kind: 'host', capacity_bytes: 8192, reserve_bytes: 0, used_bytes: 1024, policy: 'fair' },
    lanes: [{ id: 1, size_bytes: 4096, holder: null, queue: [] }],
    users: [{ name: 'ada', share: 1, quota_bytes: 8192, persistent_bytes: 1024 }],
    sessions
  };
}

export function view(fields: Record<string, unknown> = {}): string {
  return JSON.stringify({
    version: 1,
    gateway: { state: 'connected', message: null },
    user: { name: 'ada', admin: false },
    kernels: { kernel: '0123456789ab' },
    status: status(session()),
    ...fields
  });
}
