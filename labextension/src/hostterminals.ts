/** Terminals on the gateway's host: JupyterLab's own, at another address; only where the gateway lets users have them. */

import type { ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { ICommandPalette, IThemeManager, MainAreaWidget, showErrorMessage, WidgetTracker } from '@jupyterlab/apputils';
import type { ILauncher } from '@jupyterlab/launcher';
import { TerminalManager } from '@jupyterlab/services';
import { Terminal } from '@jupyterlab/terminal';
import type { ITranslator, TranslationBundle } from '@jupyterlab/translation';
import { terminalIcon } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';

import { hostSettings } from './api';
import { CommandIDs } from './commands';
import { DRIVE } from './hostfiles';
import { CATEGORY_RANK } from './launchercard';
import type { DeviceModel } from './model';
import { isText } from './reading';

interface IParts {
  app: JupyterFrontEnd;
  model: DeviceModel;
  launcher: ILauncher | null;
  palette: ICommandPalette | null;
  restorer: ILayoutRestorer | null;
  themes: IThemeManager | null;
  translator: ITranslator | null;
  trans: TranslationBundle;
}

/** Add the card and the command; a tab that is closed ends its terminal, one that is loaded anew has it again. */
export function addHostTerminals({ app, model, launcher, palette, restorer, themes, ...words }: IParts): void {
  const { translator, trans } = words;
  const { contents, serverSettings } = app.serviceManager;
  // It never asks for a list by itself: a question starts the user's server there.
  const terminals = new TerminalManager({ serverSettings: hostSettings(serverSettings), standby: () => true });
  const tracker = new WidgetTracker<MainAreaWidget<Terminal>>({ namespace: 'sharedkernel-terminals' });
  const command = CommandIDs.openTerminal;
  const category = trans.__('Shared GPU');
  let host: string | null = null;
  let card: IDisposable | undefined;
  const label = () => trans.__('Terminal on %1', host ?? DRIVE);
  app.commands.addCommand(command, {
    label,
    icon: terminalIcon,
    describedBy: { args: { type: 'object', properties: { cwd: { type: 'string' }, name: { type: 'string' } } } },
    isVisible: () => host !== null,
    execute: async ({ cwd, name }) => {
      const isThere = isText(cwd) && contents.driveName(cwd) === DRIVE;
      let session;
      try {
        session = isText(name)
          ? terminals.connectTo({ model: { name } })
          : await terminals.startNew({
              // The server's own numbers come again, and an old tab would have, or end, somebody's new terminal.
              name: `t${Math.random().toString(36).slice(2, 8)}`,
              ...(isThere && { cwd: contents.localPath(cwd) })
            });
      } catch (error) {
        return showErrorMessage(label(), error as Error);
      }
      const content = new Terminal(session, { shutdownOnClose: true }, translator ?? undefined);
      content.title.icon = terminalIcon;
      content.title.caption = label();
      const widget = new MainAreaWidget({ content, reveal: content.ready });
      app.shell.add(widget, 'main', { type: 'Terminal' });
      void tracker.add(widget);
      app.shell.activateById(widget.id);
      return widget;
    }
  });
  void restorer?.restore(tracker, {
    command,
    args: ({ content }) => ({ name: content.session.name }),
    name: ({ content }) => content.session.name
  });
  themes?.themeChanged.connect(() => tracker.forEach(({ content }) => content.setOption('theme', 'inherit')));
  palette?.addItem({ command, category });
  const update = () => {
    const now = model.view.host?.terminals === true && terminals.isAvailable() ? model.view.host.name : null;
    if (now !== host) {
      host = now;
      card?.dispose();
      card = host === null ? undefined : launcher?.add({ command, category, categoryRank: CATEGORY_RANK, rank: 1 });
      app.commands.notifyCommandChanged(command);
    }
  };
  model.changed.connect(update);
  update();
}
