/** Commands for the session of the notebook that the user looks at. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import { Actions } from './actions';
import type { DeviceModel } from './model';
import type { ISession } from './view';

export const CommandIDs = {
  showPanel: 'sharedkernel:show-panel',
  launch: 'sharedkernel:launch',
  openTerminal: 'sharedkernel:open-terminal',
  copyBetween: 'sharedkernel:copy-between',
  offload: 'sharedkernel:offload',
  interrupt: 'sharedkernel:interrupt',
  shutDown: 'sharedkernel:shut-down',
  disconnect: 'sharedkernel:disconnect'
} as const;

/** Add them, and put them into the palette. */
export function addCommands(
  app: JupyterFrontEnd,
  model: DeviceModel,
  actions: Actions,
  palette: ICommandPalette | null,
  trans: TranslationBundle
): void {
  const category = trans.__('Shared GPU');
  const add = (
    id: string,
    label: string,
    isEnabled: (session: ISession | null) => boolean,
    execute: (session: ISession) => Promise<void>
  ) => {
    app.commands.addCommand(id, {
      label,
      describedBy: { args: { type: 'object', properties: {} } },
      isEnabled: () => isEnabled(model.currentSession),
      execute: async () => {
        const session = model.currentSession;
        if (isEnabled(session)) {
          await execute(session as ISession);
        }
      }
    });
    palette?.addItem({ command: id, category });
  };
  palette?.addItem({ command: CommandIDs.showPanel, category });
  add(
    CommandIDs.offload,
    trans.__("Offload This Notebook's Session"),
    session => session?.state === 'idle',
    session => actions.offload(session)
  );
  add(
    CommandIDs.interrupt,
    trans.__("Interrupt This Notebook's Session"),
    session => session !== null && session.state !== 'idle',
    session => actions.interrupt(session)
  );
  add(
    CommandIDs.shutDown,
    trans.__("Shut Down This Notebook's Session…"),
    session => session !== null,
    session => actions.shutDown(session)
  );
  add(
    CommandIDs.disconnect,
    trans.__('Disconnect from the Gateway…'),
    () => model.view.gateway.state !== 'unconfigured',
    () => actions.disconnect()
  );
  // Menus and the palette look at every command when they are told: only when something is enabled anew.
  let told = '';
  model.changed.connect(() => {
    const session = model.currentSession;
    const now = `${session?.id} ${session?.state} ${model.view.gateway.state}`;
    if (now !== told) {
      told = now;
      app.commands.notifyCommandChanged();
    }
  });
}
