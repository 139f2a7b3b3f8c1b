/**
 * What people see of a shared device in JupyterLab.
 *
 * One plugin holds the model, one each shows it in the panel and in the status bar, one adds the commands. Nothing
 * here knows the gateway: the Jupyter server's extension does (`sharedkernel/client/extension/`).
 */

import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, IThemeManager } from '@jupyterlab/apputils';
import { IDefaultFileBrowser, IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { ILauncher } from '@jupyterlab/launcher';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import { Actions } from './actions';
import { Api } from './api';
import { askFromCells } from './askincell';
import { addCommands, CommandIDs } from './commands';
import { Connection } from './connection';
import { followCurrentKernel } from './currentkernel';
import { notifyOfEnds } from './endnotifications';
import { addHostFiles } from './hostfiles';
import { addHostTerminals } from './hostterminals';
import { addLauncherCard } from './launchercard';
import { MissingFiles } from './missingfile';
import { DeviceModel } from './model';
import { ModelAdapter } from './modeladapter';
import { NewFiles } from './newfiles';
import { NotebookViews } from './notebookview';
import { OutputsKeeper } from './outputs';
import { notifyOfTurns } from './notifier';
import { DevicePanel, showOnce } from './panel';
import { notifyOfRequests } from './roomnotifications';
import { StatusItem } from './statusitem';

/** The name under which translations are found. */
const DOMAIN = 'sharedkernel';

interface ISharedDevice {
  model: DeviceModel;
  actions: Actions;
  trans: TranslationBundle;
  /** Keep whether the user wants notifications of the browser. */
  setNotifies: (notifies: boolean) => void;
}

const ISharedDevice = new Token<ISharedDevice>('sharedkernel:ISharedDevice', 'The shared device.');

const device: JupyterFrontEndPlugin<ISharedDevice> = {
  id: 'sharedkernel:plugin',
  description: 'Follows the shared device.',
  autoStart: true,
  provides: ISharedDevice,
  optional: [ISettingRegistry, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    settings: ISettingRegistry | null,
    translator: ITranslator | null
  ): ISharedDevice => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const api = new Api(app.serviceManager.serverSettings);
    const model = new DeviceModel();
    new Connection({
      open: () => api.openEvents(),
      onText: text => model.receive(text),
      onLost: heard => model.lose(heard)
    });
    followCurrentKernel(app, model);
    // Where there are no settings, a choice lasts as long as the page.
    let keep: ISharedDevice['setNotifies'] = notifies => {
      model.notifies = notifies;
    };
    if (settings !== null) {
      void settings.load(device.id).then(loaded => {
        const apply = () => {
          model.refreshInterval = loaded.get('refreshInterval').composite as number;
          model.units = loaded.get('units').composite as DeviceModel['units'];
          model.notifies = loaded.get('notifications').composite as boolean;
        };
        keep = notifies => void loaded.set('notifications', notifies);
        loaded.changed.connect(apply);
        apply();
      });
    }
    const actions = new Actions(app, api, model, trans);
    notifyOfRequests(model, actions, trans);
    notifyOfEnds(model, actions, app.serviceManager.kernels, trans);
    askFromCells(document.body, model, actions);
    notifyOfTurns(model, trans);
    return { model, actions, trans, setNotifies: notifies => keep(notifies) };
  }
};

const panel: JupyterFrontEndPlugin<void> = {
  id: 'sharedkernel:panel',
  description: 'Shows it in a side panel.',
  autoStart: true,
  requires: [ISharedDevice],
  optional: [ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    { model, actions, trans, setNotifies }: ISharedDevice,
    restorer: ILayoutRestorer | null
  ): void => {
    const { kernelspecs } = app.serviceManager;
    const news = new NewFiles(app, model);
    app.docRegistry.addWidgetExtension('Notebook', news);
    const widget = new DevicePanel(
      new ModelAdapter(model),
      actions,
      news,
      setNotifies,
      () => void kernelspecs.refreshSpecs(),
      trans
    );
    app.shell.add(widget, 'left', { rank: 350, type: 'Shared GPU' });
    restorer?.add(widget, widget.id);
    void app.restored.then(() => showOnce(app, model, widget));
    app.commands.addCommand(CommandIDs.showPanel, {
      label: trans.__('Show Shared GPU'),
      describedBy: { args: { type: 'object', properties: {} } },
      execute: async () => {
        // The palette gives the focus back to the notebook once a command has run; the panel takes it after that.
        await new Promise(resolve => setTimeout(resolve));
        app.shell.activateById(widget.id);
      }
    });
  }
};

const statusBar: JupyterFrontEndPlugin<void> = {
  id: 'sharedkernel:status-bar',
  description: "Shows the current notebook's state.",
  autoStart: true,
  requires: [ISharedDevice, IStatusBar],
  activate: (app: JupyterFrontEnd, { model, trans }: ISharedDevice, bar: IStatusBar): void => {
    const adapter = new ModelAdapter(model);
    const item = new StatusItem(adapter, trans, () => {
      void app.commands.execute(CommandIDs.showPanel);
    });
    bar.registerStatusItem('sharedkernel:status-bar', {
      item,
      align: 'left',
      rank: 4,
      isActive: () => item.isActive,
      activeStateChanged: adapter.stateChanged
    });
  }
};

const commands: JupyterFrontEndPlugin<void> = {
  id: 'sharedkernel:commands',
  description: 'Adds commands for the current notebook.',
  autoStart: true,
  requires: [ISharedDevice],
  optional: [ICommandPalette],
  activate: (app: JupyterFrontEnd, { model, actions, trans }: ISharedDevice, palette: ICommandPalette | null): void => {
    addCommands(app, model, actions, palette, trans);
  }
};

const launcherCard: JupyterFrontEndPlugin<void> = {
  id: 'sharedkernel:launcher',
  description: 'Adds a card to the launcher.',
  autoStart: true,
  requires: [ISharedDevice, ILauncher],
  activate: (app: JupyterFrontEnd, { model, trans }: ISharedDevice, launcher: ILauncher): void => {
    addLauncherCard(app, launcher, model, trans);
  }
};

const outputs: JupyterFrontEndPlugin<void> = {
  id: 'sharedkernel:outputs',
  description: 'Brings back missed outputs.',
  autoStart: true,
  requires: [ISharedDevice],
  activate: (app: JupyterFrontEnd, { actions }: ISharedDevice): void => {
    app.docRegistry.addWidgetExtension('Notebook', new OutputsKeeper(actions.api));
  }
};

const views: JupyterFrontEndPlugin<void> = {
  id: 'sharedkernel:views',
  description: 'Draws the notebook widgets.',
  autoStart: true,
  requires: [ISharedDevice],
  activate: (app: JupyterFrontEnd, { model, actions, trans }: ISharedDevice): void => {
    app.docRegistry.addWidgetExtension('Notebook', new NotebookViews(model, actions.api, trans));
  }
};

const files: JupyterFrontEndPlugin<void> = {
  id: 'sharedkernel:files',
  description: "Shows the user's files on the gateway's host.",
  autoStart: true,
  requires: [ISharedDevice, IFileBrowserFactory, IDefaultFileBrowser],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    { model, actions, trans }: ISharedDevice,
    factory: IFileBrowserFactory,
    local: IDefaultFileBrowser,
    translator: ITranslator | null
  ): void => {
    const { api } = actions;
    const parts = { app, api, model, factory, local, translator: translator ?? nullTranslator, trans };
    const refresh = addHostFiles(parts);
    app.docRegistry.addWidgetExtension('Notebook', new MissingFiles(model, api, refresh, trans));
  }
};

const terminals: JupyterFrontEndPlugin<void> = {
  id: 'sharedkernel:terminals',
  description: "Opens terminals on the gateway's host.",
  autoStart: true,
  requires: [ISharedDevice],
  optional: [ILauncher, ICommandPalette, ILayoutRestorer, IThemeManager, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    { model, trans }: ISharedDevice,
    launcher: ILauncher | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    themes: IThemeManager | null,
    translator: ITranslator | null
  ): void => {
    addHostTerminals({ app, model, launcher, palette, restorer, themes, translator, trans });
  }
};

export default [device, panel, statusBar, commands, launcherCard, outputs, views, files, terminals];
