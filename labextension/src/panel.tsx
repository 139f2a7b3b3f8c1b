/**
 * The side panel: the user's sessions, who runs and is next, the device, and for admins everybody's sessions and
 * quotas.
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import { VDomRenderer } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import * as React from 'react';

import { Actions } from './actions';
import { userColours } from './colours';
import { DeviceStrip } from './devicestrip';
import { HostsSection } from './hosts';
import { deviceIcon } from './icons';
import { ModelAdapter } from './modeladapter';
import { notice } from './notice';
import { NotifySwitch } from './notifyswitch';
import { QuotasSection } from './quotas';
import { RoomRequests } from './room';
import { OthersSection, SessionsSection } from './sessions';
import { AsOf, DrainNotice } from './standing';
import { TimelineSection } from './timelinesection';
import { TurnsSection } from './turns';

export class DevicePanel extends VDomRenderer<ModelAdapter> {
  constructor(
    model: ModelAdapter,
    private readonly _actions: Actions,
    private readonly _setNotifies: (notifies: boolean) => void,
    private readonly _trans: TranslationBundle
  ) {
    super(model);
    model.isVisible = () => this.isVisible;
    this.id = 'sharedkernel-panel';
    this.addClass('sk-Panel');
    this.title.icon = deviceIcon;
    this.title.caption = _trans.__('Shared GPU');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', _trans.__('Shared GPU'));
    this.node.tabIndex = -1;
  }

  override render(): React.ReactElement {
    const { device } = this.model;
    const trans = this._trans;
    const { user, status } = device.view;
    const trouble = notice(device, trans);
    const own = user?.name ?? null;
    const names = { units: device.units, trans, own };
    const mine = status?.sessions.filter(one => one.user === own) ?? [];
    const others = status?.sessions.filter(one => one.user !== own) ?? [];
    const colours = userColours(status);
    return (
      <div className={device.isLive ? 'sk-Panel-content' : 'sk-Panel-content sk-mod-stale'}>
        <div role="status" aria-live="polite">
          {trouble !== null && (
            <p className={trouble.passing ? 'sk-Notice' : 'sk-Notice sk-mod-problem'}>{trouble.text}</p>
          )}
          <DrainNotice model={device} trans={trans} />
        </div>
        {status !== null && (
          <>
            <AsOf model={device} trans={trans} />
            <RoomRequests status={status} actions={this._actions} {...names} />
            <SessionsSection
              title={trans.__('My sessions')}
              empty={trans.__('You have none. Pick the kernel “Shared GPU” in the launcher.')}
              sessions={mine}
              actions={this._actions}
              currentId={device.currentSession?.id ?? null}
              colours={colours}
              requests={status.room_requests}
              {...names}
            >
              <NotifySwitch isOn={device.notifies} onChange={this._setNotifies} trans={trans} />
            </SessionsSection>
            <TurnsSection status={status} colours={colours} {...names} />
            <HostsSection status={status} {...names} />
            <DeviceStrip
              status={status}
              api={user?.admin === true && device.isLive ? this._actions.api : null}
              {...names}
            />
            <TimelineSection api={this._actions.api} colours={colours} isFolded isAway={!device.isLive} {...names} />
            {user?.admin === true && (
              <>
                <OthersSection
                  title={trans.__('Sessions of others')}
                  empty={trans.__('There are none.')}
                  sessions={others}
                  actions={this._actions}
                  currentId={null}
                  showUser
                  colours={colours}
                  {...names}
                />
                <QuotasSection api={this._actions.api} users={status.users.map(one => one.name)} trans={trans} />
              </>
            )}
          </>
        )}
      </div>
    );
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.model.refresh();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus();
  }
}
