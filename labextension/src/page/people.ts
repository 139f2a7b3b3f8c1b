/** Who uses the device, for admins: one entry for each person. */

import { userFigures } from '../figures';
import { valueOf } from '../format';
import type { ILimits } from '../limits';
import type { IStatus } from '../view';

export const PAGE_SIZE = 20;

export type Order = 'name' | 'memory' | 'activity';

export interface IPerson {
  name: string;
  /** On the device now. */
  usedBytes: number;
  /** What counts for the quota. */
  chargedBytes: number;
  quotaBytes: number | null;
  sessions: number;
  /** Since something last ran in one of their sessions; null: they have none. */
  idleMinutes: number | null;
  limits: ILimits | null;
}

/** Return everybody who has limits or uses the device. */
export function peopleOf(status: IStatus, limits: ReadonlyMap<string, ILimits>): IPerson[] {
  const people = new Map<string, IPerson>();
  const person = (name: string): IPerson => {
    const known = people.get(name) ?? {
      name,
      usedBytes: 0,
      chargedBytes: 0,
      quotaBytes: null,
      sessions: 0,
      idleMinutes: null,
      limits: limits.get(name) ?? null
    };
    people.set(name, known);
    return known;
  };
  for (const name of limits.keys()) {
    person(name);
  }
  for (const user of status.users) {
    const entry = person(user.name);
    entry.usedBytes = valueOf(userFigures.memory, user) ?? 0;
    entry.chargedBytes = user.quota_used_bytes;
    entry.quotaBytes = user.quota_bytes;
  }
  for (const session of status.sessions) {
    const entry = person(session.user);
    entry.sessions += 1;
    entry.idleMinutes = Math.min(entry.idleMinutes ?? Infinity, session.idle_seconds / 60);
  }
  return [...people.values()];
}

/** Return those whose names contain a text, in an order; ties are by name. */
export function pick(people: readonly IPerson[], search: string, order: Order): IPerson[] {
  const wanted = search.trim().toLowerCase();
  const rank = (person: IPerson): number => {
    switch (order) {
      case 'memory':
        return -person.usedBytes;
      case 'activity':
        return person.idleMinutes ?? Infinity;
      default:
        return 0;
    }
  };
  return people
    .filter(person => person.name.toLowerCase().includes(wanted))
    .sort((one, other) => {
      const [first, second] = [rank(one), rank(other)];
      return first === second ? one.name.localeCompare(other.name, undefined, { numeric: true }) : first - second;
    });
}
