/** Sessions that an admin has selected, and what is said of acting on many of them at once. */

import { safeText, sessionName } from '../describe';
import { reasonOf } from '../limits';
import type { ISession } from '../view';
import { english as trans } from './english';

/** Requests that run at a time. */
const AT_ONCE = 4;
/** Of more failures or people than so many, the others are only counted. */
const FEW = 3;

/** Something that could not be done with a session, and why. */
export interface IFailure {
  session: ISession;
  reason: string;
}

/** Whether a session can be selected: one that was shut down is ended on its own. */
export function isSelectable(session: ISession): boolean {
  return !session.lingering;
}

/** Return the sessions that are selected and still there. */
export function selectedOf(sessions: readonly ISession[], selected: ReadonlySet<string>): ISession[] {
  return sessions.filter(session => selected.has(session.id) && isSelectable(session));
}

/** Return the selection with some sessions, or without them. */
export function withSessions(
  selected: ReadonlySet<string>,
  sessions: readonly ISession[],
  isSelected: boolean
): Set<string> {
  const changed = new Set(selected);
  for (const session of sessions) {
    if (isSelected) {
      changed.add(session.id);
    } else {
      changed.delete(session.id);
    }
  }
  return changed;
}

/**
 * Do something with each of some sessions, a few at a time; return what failed.
 *
 * An error for which `isFatal` says so ends it, and is thrown.
 */
export async function forEach(
  sessions: readonly ISession[],
  work: (session: ISession) => Promise<void>,
  done: (count: number) => void,
  isFatal: (error: unknown) => boolean
): Promise<IFailure[]> {
  const failures: IFailure[] = [];
  const left = [...sessions];
  let count = 0;
  const runAll = async () => {
    for (let session = left.shift(); session !== undefined; session = left.shift()) {
      try {
        await work(session);
      } catch (error) {
        if (isFatal(error)) {
          left.length = 0;
          throw error;
        }
        failures.push({ session, reason: reasonOf(error) });
      }
      count += 1;
      done(count);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, runAll));
  return failures;
}

/** Return how many notebooks these are. */
export function notebooks(count: number): string {
  return count === 1 ? trans.__('1 notebook') : trans.__('%1 notebooks', count);
}

/** Return whose sessions these are, as a list in words. */
export function peopleWords(sessions: readonly ISession[]): string {
  const names = [...new Set(sessions.map(session => session.user))].map(safeText);
  return few(names);
}

/** Return what failed, in one sentence: `what` is such as “stopped”. */
export function failureWords(failures: readonly IFailure[], total: number, what: string): string {
  const named = failures.map(({ session, reason }) =>
    trans.__('%1 of %2 (%3)', sessionName(session), safeText(session.user), safeText(reason.replace(/\.$/, '')))
  );
  return trans.__('%1 of %2 could not be %3: %4.', failures.length, notebooks(total), what, few(named));
}

function few(names: readonly string[]): string {
  const more = names.length - FEW;
  const shown = more > 0 ? [...names.slice(0, FEW), trans.__('%1 more', more)] : [...names];
  const last = shown.pop() ?? '';
  return shown.length === 0 ? last : trans.__('%1 and %2', shown.join(', '), last);
}
