import { describe, expect, it } from 'vitest';

import { english, session, status, view } from './testdocuments';
import { parseView, VersionError, ViewError } from './view';
import { hostWords, leftOutWords } from './words';

describe('parseView', () => {
  it('reads what the server sends', () => {
    const parsed = parseView(view());
    expect(parsed.user).toEqual({ name: 'ada', admin: false });
    expect(parsed.kernels.get('kernel')).toBe('0123456789ab');
    expect(parsed.status?.sessions[0]).toMatchObject({ state: 'idle', persistent_bytes: 1024, queue_position: null });
    expect(parsed.status?.lanes[0]).toMatchObject({ id: 1, number: null, size_bytes: 4096, holder: null, queue: [] });
    const none = parseView(view({ user: null, status: null, kernels: {} }));
    expect([none.user, none.status]).toEqual([null, null]);
  });

  it('counts what an older gateway does not tell as none', () => {
    const [read] = parseView(view({ status: status({ id: 'a', user: 'b', state: 'c' }) })).status!.sessions;
    expect(read).toMatchObject({ notebook: null, ephemeral_bytes: 0, offload_note: null, waiting_for: null });
  });

  it('reads the hosts where there are several', () => {
    const hosts = [
      { name: 'h1', answering: true, message: null, version: '1.0', num_devices: 2, num_sessions: 3, in_ray: true },
      { name: 'h2', answering: false, message: 'it is silent', version: null, cordoned: true }
    ];
    const read = (listed: unknown[]) =>
      parseView(view({ status: { ...status(session({ host: 'h1' })), hosts: listed } })).status!;
    const parsed = read(hosts);
    expect(parsed.sessions[0]!.host).toBe('h1');
    expect(parsed.hosts.map(host => hostWords(host, english))).toEqual(['answers, in Ray', 'away, draining']);
    expect(parsed.hosts[0]).toMatchObject({ version: '1.0', num_devices: 2, num_sessions: 3 });
    expect(parsed.hosts[1]).toMatchObject({ message: 'it is silent', num_devices: 0 });
    expect(leftOutWords(parsed, english)).toBe(null);
    const large = { ...status(), hosts, left_out: { hosts: 0, devices: 936, lanes: 7, sessions: 19500, users: 0 } };
    expect(leftOutWords(parseView(view({ status: large })).status!, english)).toBe(
      'Not shown: 936 devices, 19500 sessions. Your own come first.'
    );
    expect(read(hosts.slice(0, 1)).hosts).toEqual([]);
    expect(parseView(view()).status!.hosts).toEqual([]);
  });

  it('reads what is said of several devices', () => {
    const several = status(session({ device: 'cuda:1' }));
    several.devices = [
      { name: 'cuda:0', kind: 'cuda', description: 'A card', capacity_bytes: 100, available: true, message: null },
      { name: 'cuda:1', kind: null, capacity_bytes: null, available: false, message: 'nobody answers' }
    ];
    several.lanes = [{ id: 3, number: 1, device: 'cuda:1', size_bytes: 1, holder: null, queue: [] }];
    several.users = [{ name: 'ada', devices: [{ device: 'cuda:0', persistent_bytes: 7 }] }];
    const parsed = parseView(view({ status: several })).status!;
    expect(parsed.devices.map(device => [device.name, device.description, device.trouble])).toEqual([
      ['cuda:0', 'A card', null],
      ['cuda:1', null, 'nobody answers']
    ]);
    expect(parsed.lanes[0]).toMatchObject({ id: 3, number: 1, device: 'cuda:1' });
    expect(parsed.users[0]!.devices[0]!.persistent_bytes).toBe(7);
    expect(parsed.sessions[0]!.device).toBe('cuda:1');
  });

  it('takes the colour that the gateway has chosen', () => {
    const colours = ['#4a75b4', 'url(//elsewhere)', undefined].map(colour => {
      const users = [{ name: 'ada', colour }];
      return parseView(view({ status: { ...status(), users } })).status!.users[0]!.colour;
    });
    expect(colours).toEqual(['#4a75b4', null, null]);
  });

  it('takes no amount that cannot be one', () => {
    const odd = session({ persistent_bytes: -5, ephemeral_bytes: 'many', iterations: null });
    const [read] = parseView(view({ status: status(odd) })).status!.sessions;
    expect(read).toMatchObject({ persistent_bytes: 0, ephemeral_bytes: 0, iterations: 0 });
  });

  it.each([
    'no JSON',
    '7',
    '[]',
    '{}',
    view({ gateway: null }),
    view({ gateway: { state: 'dancing' } }),
    view({ kernels: [] }),
    view({ user: { name: 7 } }),
    view({ status: 'much' }),
    view({ status: { device: {} } }),
    view({ status: { ...status(), sessions: [7] } }),
    view({ status: status({ id: 7 }) })
  ])('refuses %s', text => {
    expect(() => parseView(text)).toThrow(ViewError);
  });

  it('tells another version from garbage', () => {
    expect(() => parseView(view({ version: 2 }))).toThrow(VersionError);
  });
});
