/** The order of notebooks in their table, and which of them a search finds. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { isShutDown, safeText, sessionName, sessionState } from './describe';
import { sessionFigures } from './figures';
import { valueOf } from './format';
import type { ISession } from './view';
import { waitsForMemory } from './words';

/** What sessions are sorted by; null: that of the notebook in front, then one's own, then by what they do. */
export type Order = 'person' | 'notebook' | 'state' | 'memory' | null;

/** Whether a search finds a session: by its user, its notebook or its state. */
export function isFound(session: ISession, search: string, own: string | null, trans: TranslationBundle): boolean {
  const you = session.user === own ? trans.__('you') : '';
  const text = [safeText(session.user), you, sessionName(session), sessionState(session, trans)].join(' ');
  return text.toLowerCase().includes(search.trim().toLowerCase());
}

/** Return sessions in an order; ties are by what they do, then by person and notebook. */
export function inOrder(
  sessions: readonly ISession[],
  order: Order,
  own: string | null,
  currentId: string | null
): ISession[] {
  const compare: Record<string, (one: ISession, other: ISession) => number> = {
    person: (one, other) => byText(one.user, other.user),
    notebook: (one, other) => byText(sessionName(one), sessionName(other)),
    state: () => 0,
    memory: (one, other) => memory(other) - memory(one)
  };
  const isMine = (session: ISession) => Number(session.user === own) + 2 * Number(session.id === currentId);
  const first = compare[order ?? ''] ?? ((one, other) => isMine(other) - isMine(one));
  return [...sessions].sort(
    (one, other) =>
      first(one, other) ||
      place(one) - place(other) ||
      byText(one.user, other.user) ||
      byText(sessionName(one), sessionName(other)) ||
      byText(one.id, other.id)
  );
}

function byText(one: string, other: string): number {
  return one.localeCompare(other, undefined, { numeric: true });
}

function memory(session: ISession): number {
  return valueOf(sessionFigures.memory, session) ?? 0;
}

/** Return where a session stands: those that compute, those in line by their place, then those that need nothing. */
function place(session: ISession): number {
  if (isShutDown(session)) {
    return 1e9;
  }
  if (session.computing) {
    return 0;
  }
  if (session.queue_position !== null) {
    return session.queue_position;
  }
  if (session.state === 'queued' || waitsForMemory(session)) {
    return 1e6;
  }
  return session.state === 'offloaded' ? 1e8 : 1e7;
}
