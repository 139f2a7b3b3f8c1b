/** Tells the model which kernel the user looks at. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';

import { contextOf, kernelOfWidget } from './actions';
import type { DeviceModel } from './model';

/** Keep `model.currentKernel` that of the widget in front, whatever its kernel is changed to. */
export function followCurrentKernel(app: JupyterFrontEnd, model: DeviceModel): void {
  let context: ISessionContext | null = null;
  const update = () => {
    model.currentKernel = kernelOfWidget(app.shell.currentWidget);
  };
  const onCurrent = () => {
    const next = contextOf(app.shell.currentWidget) as ISessionContext | null;
    if (next !== context) {
      context?.kernelChanged.disconnect(update);
      context = next;
      context?.kernelChanged.connect(update);
    }
    update();
  };
  app.shell.currentChanged?.connect(onCurrent);
  void app.restored.then(onCurrent);
}
