import { VDomModel } from '@jupyterlab/ui-components';

import type { DeviceModel } from './model';

/**
 * The device's model as JupyterLab's renderers take it.
 *
 * It passes a change on only while its view can be seen; `refresh` brings a view up to date that has come into sight.
 */
export class ModelAdapter extends VDomModel {
  constructor(readonly device: DeviceModel) {
    super();
    device.changed.connect(this._onChanged, this);
  }

  /** Whether somebody can see the view. */
  isVisible: () => boolean = () => true;

  refresh(): void {
    this.stateChanged.emit();
  }

  override dispose(): void {
    this.device.changed.disconnect(this._onChanged, this);
    super.dispose();
  }

  private _onChanged(): void {
    if (this.isVisible() && !document.hidden) {
      this.refresh();
    }
  }
}
