// Package wholefile replaces and reads files as a whole: whoever reads one, also after
// a crash at any moment, finds the old content or the new, never a part.
//
// It is for settings, journals and measurements, which are rewritten at each
// change. Folders are the caller's to make, with the permissions that it wants;
// so are symbolic links, which would be replaced and not followed.
//
// Never here: knowledge of what the files hold, and the files of downloads and of
// the prefix store, which are too large to be written at once and have rules of
// their own for what is trusted.
//
// Read first: Write.
package wholefile
