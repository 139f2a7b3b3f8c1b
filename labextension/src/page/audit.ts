/** The audit log's newest entries, as the gateway returns them to admins. */

import { safeText } from '../describe';
import { english as trans } from './english';

export interface IAuditEntry {
  /** Milliseconds since 1970; null where it is not known. */
  time: number | null;
  /** Who acted; null: the gateway itself, or nobody who is known. */
  user: string | null;
  action: string;
  /** Whose session it was; null where it was about none. */
  owner: string | null;
  session: string | null;
  /** Path of its notebook; null where it is not known. */
  notebook: string | null;
  address: string | null;
  /** Of an answer that was a refusal; null otherwise. */
  refusal: number | null;
  /** What else is known, as text. */
  details: string;
}

export interface IAudit {
  /** Newest first. */
  entries: IAuditEntry[];
  /** Whether there are older ones. */
  older: boolean;
  /** Where the log is; null: there is none. */
  file: string | null;
}

const KNOWN = new Set(['time', 'user', 'action', 'owner', 'session', 'notebook', 'address', 'status']);
/** Characters of details that are shown. */
const LONGEST = 200;

/** Return the entries in an answer of the gateway. */
export function readAudit(answer: unknown): IAudit {
  const { entries, older, file } = (answer ?? {}) as Record<string, unknown>;
  return {
    entries: Array.isArray(entries) ? entries.filter(isObject).map(readEntry) : [],
    older: older === true,
    file: textOrNull(file)
  };
}

function readEntry(entry: Record<string, unknown>): IAuditEntry {
  const time = Date.parse(String(entry.time));
  const { status } = entry;
  const rest = Object.entries(entry).filter(([key, value]) => !KNOWN.has(key) && value !== null);
  const details = rest.map(([key, value]) => `${key}: ${detail(value)}`);
  const text = details.join(', ');
  return {
    time: Number.isNaN(time) ? null : time,
    user: textOrNull(entry.user),
    action: textOrNull(entry.action) ?? '',
    owner: textOrNull(entry.owner),
    session: textOrNull(entry.session),
    notebook: textOrNull(entry.notebook),
    address: textOrNull(entry.address),
    refusal: typeof status === 'number' && status >= 400 ? status : null,
    details: text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text
  };
}

/** Return what was done, to whose session, and how it went if it did not. */
export function actWords(entry: IAuditEntry): string {
  const parts = [safeText(entry.action)];
  if (entry.session !== null) {
    const id = safeText(entry.notebook?.split('/').pop() ?? entry.session.slice(0, 8));
    parts.push(
      entry.owner === null || entry.owner === entry.user ? id : trans.__('%1 of %2', id, safeText(entry.owner))
    );
  }
  if (entry.details !== '') {
    parts.push(safeText(entry.details));
  }
  if (entry.refusal !== null) {
    parts.push(trans.__('refused (%1)', entry.refusal));
  }
  return parts.join(' · ');
}

function detail(value: unknown): string {
  if (Array.isArray(value) && value.every(part => typeof part === 'string')) {
    return value.join('; ');
  }
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function textOrNull(value: unknown): string | null {
  return typeof value === 'string' && value !== '' ? value : null;
}
