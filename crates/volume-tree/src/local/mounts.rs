//! The mount table of this process (`/proc/self/mountinfo`).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Which part of its file system is mounted: `/` for all of it.
    part: PathBuf,
    /// Where.
    pub(super) point: PathBuf,
    /// Such as `ext4`.
    kind: String,
}

pub(super) fn read() -> io::Result<Vec<Mount>> {
    // By thread: /proc/self is that of the main thread, which may live in another mount namespace.
    Ok(parse(&std::fs::read("/proc/thread-self/mountinfo")?))
}

/// Is a file system of its own mounted at `path`?
///
/// In a pod, every host path is a mount point. What tells a disk from a directory of the host's own disk is the part:
/// a disk is mounted whole, a host path shows up as a part. Btrfs mounts subvolumes, which are parts.
pub(super) fn is_whole_mount(mounts: &[Mount], path: &Path) -> bool {
    // The last one on a point hides those before it.
    let top = mounts.iter().rev().find(|mount| mount.point == path);
    top.is_some_and(|mount| mount.part == Path::new("/") || mount.kind == "btrfs")
}

fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /part /point rw,noatime master:1 - ext3 /dev/root rw`, with a variable number of fields before the dash.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let (part, point) = (fields.nth(3)?, fields.next()?);
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    Some(Mount {
        part: unescape(part),
        point: unescape(point),
        kind: String::from_utf8_lossy(kind).into_owned(),
    })
}

/// Space, tab, newline and backslash are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let escaped = (*first == b'\\').then(|| tail.get(..3).and_then(octal)).flatten();
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn octal(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok()?;
    u8::from_str_radix(text, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 254:0 /opt/volwright /opt/volwright rw - ext4 /dev/vda rw
31 22 8:16 / /mnt/disk\\0401 rw shared:7 master:2 - xfs /dev/sdb rw
32 22 0:40 /@data /mnt/pool rw - btrfs /dev/sdc rw
33 31 254:0 /etc /mnt/disk\\0401 ro - ext4 /dev/vda rw
34 22 0:41 / /mnt/ram rw - tmpfs tmpfs rw
";

    #[test]
    fn a_host_path_in_a_pod_is_no_disk() {
        let mounts = parse(TABLE);
        let cases = [
            ("/", true),
            ("/opt/volwright", false),
            ("/mnt/pool", true),
            ("/mnt/disk 1", false), // hidden by a bind mount
            ("/mnt/ram", true),
            ("/mnt", false),
        ];
        for (path, expected) in cases {
            assert_eq!(is_whole_mount(&mounts, Path::new(path)), expected, "{path}");
        }
        assert!(is_whole_mount(&mounts[..3], Path::new("/mnt/disk 1")));
    }

    #[test]
    fn the_table_of_this_machine_has_a_root() {
        assert!(read().unwrap().iter().any(|mount| mount.point == Path::new("/")));
    }
}
