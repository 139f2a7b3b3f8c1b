/** Copies of files and folders between the Jupyter server's machine and the gateway's host, as notifications. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import { Api, ICopy, IProgress } from './api';
import { safeText } from './describe';

/** Milliseconds for which a notification says that a copy is done. */
const DONE = 5000;

/** Copy, and ask before a file is replaced; return whether it was done. */
export async function copy(api: Api, wanted: ICopy, trans: TranslationBundle): Promise<boolean> {
  const name = safeText(wanted.from.split('/').pop() ?? '');
  const cancel = new AbortController();
  const show = ({ name, done, total }: IProgress) =>
    Notification.update({
      id,
      message: trans.__('Copying %1', safeText(name)),
      progress: total === 0 ? 0 : done / total
    });
  const stop = { label: trans.__('Cancel'), callback: () => cancel.abort() };
  const id = Notification.emit(trans.__('Copying %1', name), 'in-progress', { autoClose: false, actions: [stop] });
  const tell = (message: string, type: 'success' | 'error' | 'info') =>
    Notification.update({ id, message, type, autoClose: type === 'error' ? false : DONE, actions: [] });
  let answer;
  try {
    answer = await api.copy(wanted, show, cancel.signal);
  } catch (error) {
    answer = { message: (error as Error).message, reason: '' };
  }
  if (cancel.signal.aborted) {
    tell(trans.__('%1 was not copied.', name), 'info');
    return false;
  }
  if (answer.reason === 'exists' && !wanted.overwrite) {
    Notification.dismiss(id);
    const isAgreed = await isMeant(trans.__('Replace?'), answer.message ?? '', trans.__('Replace'));
    return isAgreed && copy(api, { ...wanted, overwrite: true }, trans);
  }
  if (answer.message === undefined) {
    const links = answer.links ?? 0;
    const words =
      links === 0 ? trans.__('%1 was copied.', name) : trans.__('%1 was copied, without %2 links.', name, links);
    tell(words, 'success');
    return true;
  }
  tell(answer.message, 'error');
  return false;
}

/** Ask the user; return whether they mean it. */
export async function isMeant(title: string, body: string, agree: string): Promise<boolean> {
  const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label: agree })];
  return (await showDialog({ title, body, buttons })).button.accept;
}
