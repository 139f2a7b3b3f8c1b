/** Everybody's limits and the policy, as the gateway's REST API has them. */

/** What a user may have; null: no limit of this kind. */
export interface ILimits {
  memory: string | number | null;
  share: number | null;
  sessions: number | null;
  /** Which of them an admin has set for this user by hand. */
  byHand: string[];
}

/** What admins read and change. Each method throws `RefusedError` where the gateway refuses. */
export interface IAdminApi {
  /** Return everybody's limits, by name. */
  limits(): Promise<Map<string, ILimits>>;
  /** Change some of one user's limits, and return everybody's; others stay as they are. */
  changeLimits(user: string, limits: Partial<ILimits>): Promise<Map<string, ILimits>>;
  /** Return the names of all policies. */
  policies(): Promise<string[]>;
  /** Apply another policy, and return the names of all. */
  setPolicy(policy: string): Promise<string[]>;
}

/** The status of a request that nobody answered, as a proxy has it. */
export const NO_ANSWER = 503;

/** A request was refused; the message is a sentence for the user. */
export class RefusedError extends Error {
  /** With the status of the answer, 429 and 5xx may pass, and what else it says. */
  constructor(
    message: string,
    readonly status: number,
    readonly answer: unknown = null
  ) {
    super(message);
  }
}

/** Return why something failed, for the user. */
export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Return the policies in an answer of the gateway. */
export function readPolicies(answer: unknown): string[] {
  const policies = (answer as { policies?: unknown } | null)?.policies;
  return Array.isArray(policies) ? policies.map(String) : [];
}

/** Return for how many seconds a user's session that was shut down can be brought back; null where nobody knows. */
export function readLinger(answer: unknown, user: string): number | null {
  const users = (answer as { users?: Record<string, { linger?: { value?: unknown } } | undefined> } | null)?.users;
  const seconds = users?.[user]?.linger?.value;
  return typeof seconds === 'number' ? seconds : null;
}

/** Return the limits in an answer of the gateway. */
export function readLimits(answer: unknown): Map<string, ILimits> {
  const users = (answer as { users?: unknown } | null)?.users;
  const limits = new Map<string, ILimits>();
  if (typeof users !== 'object' || users === null) {
    return limits;
  }
  for (const [name, entry] of Object.entries(users)) {
    const found = (entry ?? {}) as Record<string, { value?: unknown; source?: unknown } | undefined>;
    const value = (key: string) => found[key]?.value;
    const memory = value('memory');
    const share = value('share');
    const sessions = value('sessions');
    limits.set(name, {
      memory: typeof memory === 'string' || typeof memory === 'number' ? memory : null,
      share: typeof share === 'number' ? share : null,
      sessions: typeof sessions === 'number' ? sessions : null,
      byHand: Object.keys(found).filter(key => found[key]?.source === `put: user ${name}`)
    });
  }
  return limits;
}

/** Return the limit that somebody typed; what is no number is sent as it is, and the gateway says what is wrong. */
export function typedLimit(kind: keyof ILimits, text: string): string | number | null {
  const typed = text.trim();
  if (typed === '') {
    return null;
  }
  const isNumber = kind === 'memory' ? /^\d+$/.test(typed) : !Number.isNaN(Number(typed));
  return isNumber ? Number(typed) : typed;
}
