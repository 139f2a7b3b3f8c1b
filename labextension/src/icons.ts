import { LabIcon } from '@jupyterlab/ui-components';

/** A folder on a rack. */
export const hostFilesIcon = new LabIcon({
  name: 'sharedkernel:host-files',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">
  <path class="jp-icon3" fill="#616161" d="M10 3H4a2 2 0 0 0-2 2v9a2 2 0 0 0 2 2h16a2 2 0 0 0 2-2V7a2 2 0 0 0-2-2h-8zM3 18h18v4H3zm2 1v2h4v-2z"/>
</svg>`
});

/** A device with three lanes, in the colour of the icons around it. */
export const deviceIcon = new LabIcon({
  name: 'sharedkernel:device',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 64 64">
  <g class="jp-icon3" fill="#616161">
    <path fill-rule="evenodd" d="M16 9h32a7 7 0 0 1 7 7v32a7 7 0 0 1-7 7H16a7 7 0 0 1-7-7V16a7 7 0 0 1 7-7zm0 6a1 1 0 0 0-1 1v32a1 1 0 0 0 1 1h32a1 1 0 0 0 1-1V16a1 1 0 0 0-1-1z"/>
    <path d="M20 20h24v5H20zM20 29.500h14v5H20zM20 39h19v5H20z"/>
    <path d="M17 2h5v8h-5zM29.500 2h5v8h-5zM42 2h5v8h-5zM17 54h5v8h-5zM29.500 54h5v8h-5zM42 54h5v8h-5zM2 17h8v5H2zM2 29.500h8v5H2zM2 42h8v5H2zM54 17h8v5h-8zM54 29.500h8v5h-8zM54 42h8v5h-8z"/>
  </g>
</svg>`
});
