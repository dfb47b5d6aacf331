/**
 * Images that are asked with. Their content stays in this tab's session storage: the URL has the
 * name only, so a copied link never carries the image.
 */

const PREFIX = "polyview.image.";
const MAX_SIDE = 640; // pixels; encoders read at most 384
const MAX_KEPT = 8;

/**
 * Keeps an image file for asking.
 * @param {File} file
 * @returns {Promise<string>} the name to put into the state
 * @throws {Error} with a sentence, if the browser cannot decode the file
 */
export async function keep(file) {
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name} cannot be read as an image. Use JPEG, PNG or WebP.`);
  });
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff"; // behind transparent pixels
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const name = `${Date.now().toString(36)}-${file.name.replace(/[^\w.-]+/g, "_").slice(-40)}`;
  const kept = Object.keys(sessionStorage).filter((key) => key.startsWith(PREFIX)).sort();
  for (const key of kept.slice(0, Math.max(0, kept.length - MAX_KEPT + 1))) sessionStorage.removeItem(key);
  sessionStorage.setItem(PREFIX + name, canvas.toDataURL("image/jpeg", 0.92));
  return name;
}

/** The content as a data URI; empty where this tab does not have it. @param {string} name */
export const content = (name) => (name ? sessionStorage.getItem(PREFIX + name) ?? "" : "");
