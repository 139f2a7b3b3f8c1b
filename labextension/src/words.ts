/** Who runs, who is next and who waits for memory, in words that need no glossary. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { holderName, isShutDown, safeText, sessionName } from './describe';
import { formatBytes, Units } from './format';
import type { IDevice, IHost, ISession, IStatus } from './view';

/** Sessions by what they do now; the ones in `next` in their order. */
export interface ITurns {
  running: ISession[];
  next: ISession[];
  waiting: ISession[];
}

/** Return the sessions that run, that are queued and that wait for memory. */
export function turnsOf(sessions: readonly ISession[]): ITurns {
  const turns: ITurns = { running: [], next: [], waiting: [] };
  for (const session of sessions) {
    if (isShutDown(session)) {
      continue;
    }
    if (waitsForMemory(session)) {
      turns.waiting.push(session);
    } else if (session.computing) {
      turns.running.push(session);
    } else if (session.queue_position !== null || session.state === 'queued') {
      turns.next.push(session);
    }
  }
  const place = (session: ISession) => session.queue_position ?? Infinity;
  const byPlace = (one: ISession, other: ISession) => (place(one) === place(other) ? 0 : place(one) - place(other));
  turns.next.sort(byPlace);
  turns.waiting.sort(byPlace);
  return turns;
}

/** Whether a session's cell cannot run before memory is free. */
export function waitsForMemory(session: ISession): boolean {
  return (
    session.state === 'waiting' ||
    session.state === 'restoring' ||
    (session.waiting_for !== null && session.waiting_for !== 'lane')
  );
}

/** Whether others could make room for a session's cell. */
export function lacksMemory(session: ISession): boolean {
  return session.needed_bytes !== null && (session.waiting_for === 'memory' || session.waiting_for === 'restore');
}

/** Return the memory that a session's cell waits for: `Needs 1.1 GiB, 600 MiB free`; null where nobody knows. */
export function needWords(session: ISession, units: Units, trans: TranslationBundle): string | null {
  return !waitsForMemory(session) || session.needed_bytes === null || session.free_bytes === null
    ? null
    : trans.__('Needs %1, %2 free', formatBytes(session.needed_bytes, units), formatBytes(session.free_bytes, units));
}

/** Return whose notebook makes room for a session that waits for memory, and when; null where nobody knows. */
export function roomWords(
  session: ISession,
  sessions: readonly ISession[],
  own: string | null,
  trans: TranslationBundle
): string | null {
  const maker = sessions.find(other => other.id === session.room_from);
  if (maker === undefined) {
    return null;
  }
  const isIdle = maker.state === 'idle';
  const when =
    session.memory_wait_seconds === null ? trans.__('soon') : trans.__('in about %1 s', session.memory_wait_seconds);
  if (maker.user === own) {
    const name = sessionName(maker);
    return isIdle
      ? trans.__('Your idle notebook %1 makes room %2', name, when)
      : trans.__('Your notebook %1 makes room %2', name, when);
  }
  const user = safeText(maker.user);
  return isIdle
    ? trans.__('%1’s idle notebook makes room %2', user, when)
    : trans.__('%1’s notebook makes room %2', user, when);
}

/** Return how many sessions compute and wait: `2 computing · 1 waiting`. */
export function turnWords(sessions: readonly ISession[], trans: TranslationBundle): string {
  const { running, next, waiting } = turnsOf(sessions);
  const waits = next.length + waiting.length;
  const words = running.length === 0 ? trans.__('idle') : trans.__('%1 computing', running.length);
  return waits === 0 ? words : trans.__('%1 · %2 waiting', words, waits);
}

/** Minutes after which a wait is worth a word to everybody. */
const LONG_WAIT = 5;

/** Return which notebook has waited unusually long, in one sentence; null when none has. */
export function longWaitWords(
  status: IStatus,
  own: string | null,
  units: Units,
  trans: TranslationBundle
): string | null {
  const waiting = status.sessions.filter(session => session.waited_minutes >= LONG_WAIT);
  const [first] = waiting.sort((one, other) => other.waited_minutes - one.waited_minutes);
  if (first === undefined) {
    return null;
  }
  const what =
    first.user === own
      ? trans.__('Your notebook %1 has waited for %2 min', sessionName(first), first.waited_minutes)
      : trans.__('%1 has waited for %2 min', holderName(first, own, trans), first.waited_minutes);
  const why = [needWords(first, units, trans), roomWords(first, status.sessions, own, trans)]
    .filter(Boolean)
    .join('; ');
  const told = why === '' ? what : trans.__('%1. %2', what, why);
  return waiting.length === 1
    ? `${told}.`
    : trans.__('%1. %2 more have waited for over %3 min.', told, waiting.length - 1, LONG_WAIT);
}

/** How full something is, for its colour and its words. */
export type Level = 'normal' | 'high' | 'full';

/** Return how full a device or a quota is: high from 80 %, full from 95 %. */
export function level(part: number, whole: number): Level {
  if (whole <= 0 || part < 0.8 * whole) {
    return 'normal';
  }
  return part < 0.95 * whole ? 'high' : 'full';
}

/** Return what to call a device: processors are named as a demonstration, in words; of several each by its name, too. */
export function deviceTitle(device: IDevice, trans: TranslationBundle): string {
  const cores = /^(?:host|cpu)(?: \((\d+) x .*\))?$/.exec(device.description ?? device.name);
  if (device.kind !== 'host' || cores === null) {
    return device.name;
  }
  const title =
    cores[1] === undefined
      ? trans.__('CPU, demo device')
      : cores[1] === '1'
        ? trans.__('CPU (1 core), demo device')
        : trans.__('CPU (%1 cores), demo device', cores[1]);
  return device.description === null ? title : `${title} · ${device.name}`;
}

/** Return what a large cluster's document leaves out; null: nothing. */
export function leftOutWords(status: IStatus, trans: TranslationBundle): string | null {
  if (status.left_out === null) {
    return null;
  }
  const { left_out: counts } = status;
  const names = {
    hosts: (count: number) => (count === 1 ? trans.__('1 host') : trans.__('%1 hosts', count)),
    devices: (count: number) => (count === 1 ? trans.__('1 device') : trans.__('%1 devices', count)),
    sessions: (count: number) => (count === 1 ? trans.__('1 session') : trans.__('%1 sessions', count)),
    users: (count: number) => (count === 1 ? trans.__('1 person') : trans.__('%1 people', count))
  };
  const kinds = (Object.keys(names) as Array<keyof typeof names>).filter(kind => counts[kind] > 0);
  const parts = kinds.map(kind => names[kind](counts[kind]));
  return parts.length === 0 ? null : trans.__('Not shown: %1. Your own come first.', parts.join(', '));
}

/** Return whether a host answers, how far it is drained, and whether it is in Ray where there is one. */
export function hostWords(host: IHost, trans: TranslationBundle): string {
  const words = [host.answering ? trans.__('answers') : trans.__('away')];
  if (host.drained) {
    words.push(trans.__('drained'));
  } else if (host.cordoned) {
    words.push(trans.__('draining'));
  }
  if (host.in_ray !== null) {
    words.push(host.in_ray ? trans.__('in Ray') : trans.__('not in Ray'));
  }
  return words.join(', ');
}
