/** The user's files on the gateway's host, as a drive in JupyterLab; where that is this machine, nothing is added. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { CommandToolbarButton } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import { FileBrowser, FilterFileBrowserModel, IFileBrowserFactory, Uploader } from '@jupyterlab/filebrowser';
import { Drive } from '@jupyterlab/services';
import type { ITranslator, TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';

import { Api, hostSettings } from './api';
import { CommandIDs } from './commands';
import { copy } from './copies';
import { hostFilesIcon } from './icons';
import type { DeviceModel } from './model';

/** As `jupyter/names.py` has it: paths begin with it. */
export const DRIVE = 'gpu-host';
const ITEMS = '.jp-DirListing-item[data-isdir]';
/** Between *Copy* and *Paste*. */
const RANK = 8.2;

/** A file browser that asks the host only while it is seen: the first question starts the user's server there. */
class HostBrowser extends FileBrowser {
  /** Called when it is seen for the first time. */
  onFirstSeen: (() => void) | null = null;

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.onFirstSeen?.();
    this.onFirstSeen = null;
    void this.model.refresh();
  }
}

interface IParts {
  app: JupyterFrontEnd;
  api: Api;
  model: DeviceModel;
  factory: IFileBrowserFactory;
  /** The browser of the Jupyter server's files. */
  local: FileBrowser;
  translator: ITranslator;
  trans: TranslationBundle;
}

/** Add the drive, its browser once the host is known, and copies; return what lists the host's files anew. */
export function addHostFiles(parts: IParts): () => void {
  const { app, model, factory, local, translator, trans } = parts;
  const { serverSettings, contents } = app.serviceManager;
  contents.addDrive(new Drive({ name: DRIVE, serverSettings: hostSettings(serverSettings) }));
  let browser: HostBrowser | null = null;
  const add = () => {
    const name = model.view.host?.files === true ? model.view.host.name : null;
    if (browser !== null || name === null) {
      return;
    }
    const files = new FilterFileBrowserModel({
      manager: local.model.manager,
      translator,
      driveName: DRIVE,
      refreshStandby: () => browser?.isVisible !== true
    });
    browser = new HostBrowser({ id: 'sharedkernel-files', model: files, translator, restore: false });
    browser.title.icon = hostFilesIcon;
    browser.title.caption = trans.__('Files on %1', name);
    browser.node.setAttribute('role', 'region');
    browser.node.setAttribute('aria-label', browser.title.caption);
    const { commands } = app;
    const button = (id: string) => new CommandToolbarButton({ commands, id, label: '' });
    browser.toolbar.addItem('new-directory', button('filebrowser:create-new-directory'));
    browser.toolbar.addItem('uploader', new Uploader({ model: files, translator }));
    browser.toolbar.addItem('refresh', button('filebrowser:refresh'));
    const added = browser;
    // What is tracked is where new notebooks go, until another browser is clicked.
    browser.onFirstSeen = () => void factory.tracker.add(added);
    app.shell.add(browser, 'left', { rank: 101, type: 'File Browser' });
  };
  model.changed.connect(add);
  add();
  addCopies(parts, () => browser);
  return () => void (browser?.isVisible === true && browser.model.refresh());
}

function addCopies({ app, api, model, local, trans }: IParts, there: () => FileBrowser | null): void {
  const { contents } = app.serviceManager;
  // The browser whose menu it is: which one JupyterLab takes for the current one follows a moment later.
  const isThere = () => app.contextMenuHitTest(node => node === there()?.node) !== undefined;
  const source = () => (isThere() ? there() : local);
  const command = CommandIDs.copyBetween;
  app.commands.addCommand(command, {
    label: () => (isThere() ? trans.__('Copy to My Computer') : trans.__('Copy to %1', model.view.host?.name ?? '')),
    describedBy: { args: { type: 'object', properties: {} } },
    isVisible: () => there() !== null,
    execute: async () => {
      const toHost = !isThere();
      const target = toHost ? there() : local;
      const folder = contents.localPath(target?.model.path ?? '');
      for (const item of [...(source()?.selectedItems() ?? [])]) {
        const from = contents.localPath(item.path);
        await copy(api, { from, to: PathExt.join(folder, item.name), toHost, overwrite: false }, trans);
      }
      void target?.model.refresh();
    }
  });
  app.contextMenu.addItem({ command, selector: ITEMS, rank: RANK });
}
