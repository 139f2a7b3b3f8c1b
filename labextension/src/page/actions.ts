/** What a user can do with a session, from the gateway's page. */

import { sessionName } from '../describe';
import type { ISessionActions } from '../sessionactions';
import type { ISession } from '../view';
import { PageApi, SignInNeededError } from './api';
import { english as trans } from './english';

interface IHandlers {
  /** Ask something, and return whether the user agrees. */
  ask: (title: string, text: string, agree: string) => Promise<boolean>;
  /** Tell what did not work. */
  tell: (text: string) => void;
  /** Called when nobody is signed in any more. */
  signIn: () => void;
}

export class PageActions implements ISessionActions {
  constructor(
    private readonly _api: PageApi,
    private readonly _handlers: IHandlers
  ) {}

  /** Notebooks are on their users' machines. */
  canGoTo(): boolean {
    return false;
  }

  async goTo(): Promise<void> {
    // There is nothing to show.
  }

  async offload(session: ISession): Promise<void> {
    await this.attempt(() => this._api.offload(session), trans.__('%1 could not be offloaded', sessionName(session)));
  }

  async interrupt(session: ISession): Promise<void> {
    await this.attempt(
      () => this._api.interrupt(session),
      trans.__('%1 could not be interrupted', sessionName(session))
    );
  }

  async shutDown(session: ISession): Promise<void> {
    const name = sessionName(session);
    const agreed = await this._handlers.ask(
      trans.__('Shut down %1?', name),
      trans.__('Its variables and tensors will be gone. To free device memory only, offload it instead.'),
      trans.__('Shut down')
    );
    if (agreed) {
      await this.attempt(() => this._api.shutDown(session), trans.__('%1 could not be shut down', name));
    }
  }

  /** Try something; tell the user why it did not work. */
  async attempt(work: () => Promise<void>, failure: string): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (error instanceof SignInNeededError) {
        this._handlers.signIn();
        return;
      }
      this._handlers.tell(`${failure}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
}
