import type { ISession } from './view';

/** What a user can do with a session; JupyterLab's panel and the gateway's page each have their own way. */
export interface ISessionActions {
  /** Whether a session's notebook can be shown here. */
  canGoTo(session: ISession): boolean;
  /** Show a session's notebook. */
  goTo(session: ISession): Promise<void>;
  /** Move a session's memory away until its next cell. */
  offload(session: ISession): Promise<void>;
  /** Interrupt what a session runs. */
  interrupt(session: ISession): Promise<void>;
  /** End a session, if the user means it. */
  shutDown(session: ISession): Promise<void>;
}
