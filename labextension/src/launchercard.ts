/**
 * A card in the launcher that says whether the shared device is free; it opens a notebook there, or the panel's form.
 *
 * The kernel's own card is JupyterLab's, which draws it from the kernelspec: it has no place for a state. A card of this
 * category stands between notebooks and consoles. A launcher reads labels when its items change, so a card whose words
 * are out of date makes room for another.
 */

import { JupyterFrontEnd } from '@jupyterlab/application';
import type { ILauncher } from '@jupyterlab/launcher';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';

import { CommandIDs } from './commands';
import { deviceIcon } from './icons';
import type { DeviceModel } from './model';
import { turnsOf } from './words';

/** Of the kernelspec that `sharedkernel install` writes unless another name is given. */
const KERNEL = 'shared-gpu';
/** JupyterLab's *Notebook* has 0, its *Console* 20. */
export const CATEGORY_RANK = 10;

/** Return what the card says of the device; null: there is nothing to offer. */
export function cardWords(model: DeviceModel, trans: TranslationBundle): string | null {
  const { gateway, status } = model.view;
  if (model.problem === null && gateway.state === 'unconfigured') {
    return trans.__('Connect to a shared GPU');
  }
  if (!model.isLive || status === null) {
    return null;
  }
  const { running, next, waiting } = turnsOf(status.sessions);
  const ahead = running.length + next.length + waiting.length;
  return ahead === 0 ? trans.__('New notebook: free') : trans.__('New notebook: %1 ahead of you', ahead);
}

export function addLauncherCard(
  app: JupyterFrontEnd,
  launcher: ILauncher,
  model: DeviceModel,
  trans: TranslationBundle
): void {
  const command = CommandIDs.launch;
  let words: string | null = null;
  let card: IDisposable | null = null;
  app.commands.addCommand(command, {
    label: () => words ?? trans.__('Shared GPU'),
    icon: deviceIcon,
    describedBy: { args: { type: 'object', properties: { cwd: { type: 'string' } } } },
    execute: async ({ cwd }): Promise<unknown> =>
      app.serviceManager.kernelspecs.specs?.kernelspecs[KERNEL] === undefined
        ? app.commands.execute(CommandIDs.showPanel)
        : app.commands.execute('notebook:create-new', { cwd, kernelName: KERNEL })
  });
  const update = () => {
    const now = cardWords(model, trans);
    if (now === words) {
      return;
    }
    words = now;
    card?.dispose();
    card =
      words === null
        ? null
        : launcher.add({ command, category: trans.__('Shared GPU'), categoryRank: CATEGORY_RANK, rank: 0 });
  };
  model.changed.connect(update);
  update();
}
