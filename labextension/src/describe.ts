/**
 * Short text about sessions.
 *
 * Names of users and notebooks come from other people. They are shown as text only (React escapes them); characters
 * that would turn the line around or hide in it are written out here.
 */

import type { TranslationBundle } from '@jupyterlab/translation';

import { formatBytes } from './format';
import type { Units } from './format';
import type { ISession } from './view';

/** What a session's dot looks like; the words beside it say it too. */
export type Tone = 'idle' | 'busy' | 'running' | 'waiting' | 'offloaded';

/** Return a text with control and formatting characters written out. */
export function safeText(value: string): string {
  return value.replace(
    /\p{C}|[\u2028\u2029]/gu,
    character => `\\u{${(character.codePointAt(0) ?? 0).toString(16).padStart(4, '0')}}`
  );
}

/** Return what to call a session: its notebook's file name, else the start of its id. */
export function sessionName(session: ISession): string {
  const name = session.notebook?.replace(/\\/g, '/').split('/').pop();
  return safeText(name ? name : session.id.slice(0, 8));
}

/** Return a session's tone. */
export function tone(session: ISession): Tone {
  if (session.computing) {
    return 'running';
  }
  if (session.queue_position !== null || session.waiting_for !== null) {
    return 'waiting';
  }
  switch (session.state) {
    case 'queued':
    case 'waiting':
    case 'restoring':
    case 'offloading':
      return 'waiting';
    case 'offloaded':
      return 'offloaded';
    case 'ready':
      return 'busy';
    default:
      return 'idle';
  }
}

/** Return a number as a place in line: `1st`, `2nd`, `13th`. */
export function ordinal(position: number, trans: TranslationBundle): string {
  const last = position % 10;
  const isTeen = Math.floor(position / 10) % 10 === 1;
  if (!isTeen && last === 1) {
    return trans.__('%1st', position);
  }
  if (!isTeen && last === 2) {
    return trans.__('%1nd', position);
  }
  if (!isTeen && last === 3) {
    return trans.__('%1rd', position);
  }
  return trans.__('%1th', position);
}

/** Return what a session does or waits for, in a few words. */
export function sessionState(session: ISession, trans: TranslationBundle): string {
  const reason = waitReason(session, trans);
  if (isShutDown(session)) {
    return session.restarted ? trans.__('kept after a restart') : trans.__('shut down');
  }
  if (session.computing && session.state !== 'preempting') {
    if (session.threads > 1) {
      return trans.__('computing in %1 threads', session.threads);
    }
    return session.threads === 1 ? trans.__('computing in a thread') : trans.__('running');
  }
  if (session.queue_position !== null) {
    const where = trans.__('%1 in line', ordinal(session.queue_position, trans));
    const isTurn = session.waiting_for === null || session.waiting_for === 'lane';
    return onHost(isTurn ? where : trans.__('%1, %2', where, reason), session, trans);
  }
  if (session.waiting_for !== null) {
    return onHost(reason, session, trans);
  }
  switch (session.state) {
    case 'idle':
      return session.idle_seconds < 60 ? trans.__('idle') : trans.__('idle %1', idleTime(session.idle_seconds, trans));
    case 'ready':
      return trans.__('running without the device');
    case 'queued':
      return trans.__('in line');
    case 'waiting':
      return trans.__('waiting for memory');
    case 'preempting':
    case 'offloading':
      return trans.__('making room');
    case 'offloaded':
      return trans.__('offloaded');
    case 'restoring':
      return trans.__('being restored');
    case 'dead':
      return trans.__('ended');
    default:
      return safeText(session.state);
  }
}

/** Return for how long nothing has run: `7 min`, `3 h`, `2 d`. */
function idleTime(seconds: number, trans: TranslationBundle): string {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) {
    return trans.__('%1 min', minutes);
  }
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? trans.__('%1 h', hours) : trans.__('%1 d', Math.floor(hours / 24));
}

/** Return what a session waits for, with its host where there are several. */
export function onHost(words: string, session: ISession, trans: TranslationBundle): string {
  return session.host === null ? words : trans.__('%1 on %2', words, safeText(session.host));
}

/** Whether it was shut down or restarted, and nothing of it runs any more. */
export function isShutDown(session: ISession): boolean {
  return session.lingering && (session.state === 'idle' || session.state === 'offloaded');
}

/** Return a session's programs on the device, such as `train.py, 2 processes, 3.1 GiB`; null: there are none. */
export function programsWords(session: ISession, units: Units, trans: TranslationBundle): string | null {
  const words = session.programs.map(program => {
    const name = safeText(program.name);
    const size = formatBytes(program.bytes, units);
    const said =
      program.processes === 1
        ? trans.__('%1, 1 process, %2', name, size)
        : trans.__('%1, %2 processes, %3', name, program.processes, size);
    return program.note === null ? said : trans.__('%1 (takes no turns: %2)', said, safeText(program.note));
  });
  return words.length > 0 ? words.join('; ') : null;
}

/** Return how a session that was shut down is brought back, and until when; null for any other. */
export function lingeringWords(session: ISession, trans: TranslationBundle): string | null {
  if (!session.lingering) {
    return null;
  }
  const end = session.restarted ? trans.__('Kept after a restart') : trans.__('Shut down');
  const words =
    session.lingering_seconds === null
      ? trans.__('%1; %shared attach in its notebook brings it back', end)
      : trans.__(
          '%1; stays for %2 min, %shared attach in its notebook brings it back',
          end,
          session.lingering_seconds / 60
        );
  const has = safeText(session.still_has.join(', '));
  return has ? trans.__('%1; it still has %2, until it is ended', words, has) : words;
}

function waitReason(session: ISession, trans: TranslationBundle): string {
  switch (session.waiting_for) {
    case 'memory':
      return trans.__('waiting for memory');
    case 'quota':
      return trans.__("waiting for its user's quota");
    case 'restore':
      return trans.__('waiting to be restored');
    default:
      return trans.__('waiting for its turn');
  }
}

/** Return a session as others are to see it: its user, and its notebook where that may be known. */
export function holderName(session: ISession | undefined, ownName: string | null, trans: TranslationBundle): string {
  if (session === undefined) {
    return trans.__('somebody');
  }
  const user = session.user === ownName ? trans.__('you') : safeText(session.user);
  return session.notebook === null ? user : trans.__('%1 (%2)', user, sessionName(session));
}

/** As Python, and libraries with a message of their own, end an error of a file that is not there. */
const MISSING = /(['"])(.+)\1$/;

/** Characters of an error that can be about a path: an expression takes long for many quotes. */
const LONGEST = 4096;

/** Return the relative path that an error says is missing; null: it says none, or one that begins elsewhere. */
export function missingName(error: { ename: string; evalue: string }): string | null {
  const isMissing = error.ename === 'FileNotFoundError' && error.evalue.length < LONGEST;
  const name = isMissing ? (MISSING.exec(error.evalue)?.[2] ?? null) : null;
  return name === null || name.startsWith('/') || name.startsWith('~') || name.split('/').includes('..') ? null : name;
}
