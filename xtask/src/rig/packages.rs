//! Debian's packages, fetched as files and unpacked below `target/rig/debian-12` and such; and the
//! host's own tools.
//!
//! ```text
//!   the machine's own lists     where its sources are of the release that is wanted
//!   target/rig/debian-13/apt    else: lists of the same sources with the other release's name in them, from `apt-get update`
//!   debs, root                  packages as fetched, and unpacked
//! ```
//! Nothing is installed, and the machine's own lists and caches are not written to, but for an
//! `apt-get update` where there are none. Where packages come from is the machine's choice: this
//! tree names no host.

use super::Rig;
use super::image::at;
use super::release::Release;
use crate::tool;
use crate::workspace::{empty_dir, run};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs that the host runs: program, package.
const TOOLS: [(&str, &str); 8] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("cpio", "cpio"),
    ("modprobe", "kmod"),
    ("readelf", "binutils"),
    ("gcc", "gcc"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("dpkg", "dpkg"),
];

/// The keys that releases are signed with, as Debian installs them. If the file is missing, apt's
/// own trusted keys are used.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The unpacked packages of a release.
pub(super) fn root(rig: &Rig<'_>, release: &Release) -> PathBuf {
    place(rig, release).join("root")
}

fn place(rig: &Rig<'_>, release: &Release) -> PathBuf {
    rig.dir.join(format!("debian-{}", release.name))
}

/// Fetches and unpacks those packages that are missing.
pub(super) fn fetch(rig: &Rig<'_>, release: &Release) -> Result<(), String> {
    for (program, package) in TOOLS {
        tool::debian(rig.workspace, program, package)?;
    }
    if release.is_debug {
        let root = root(rig, release);
        return match root.join("boot").exists() {
            true => Ok(()),
            false => Err(format!("no kernel in {}: `cargo xtask linux debug` makes it", root.display())),
        };
    }
    let apt = Apt::of(rig, release)?;
    let (debs, root) = (place(rig, release).join("debs"), root(rig, release));
    let done = root.join(".unpacked");
    let mut wanted = apt.wanted(release)?;
    if fs::read_to_string(&done).is_ok_and(|d| d == wanted.join("\n")) {
        return Ok(());
    }
    if apt.may_be_stale() {
        apt.update()?;
        wanted = apt.wanted(release)?;
    }
    for dir in [&debs, &root] {
        empty_dir(dir)?;
    }
    println!("rig: fetching {} packages of Debian {}", wanted.len(), release.name);
    // The sandbox user of apt may not write here.
    let mut get = apt.command("apt-get");
    get.current_dir(&debs).args(["-q", "-o", "APT::Sandbox::User=root", "download"]).args(&wanted);
    get.stdout(std::process::Stdio::null());
    run(&mut get).map_err(|e| format!("{e}; as root: apt-get update"))?;
    for deb in fs::read_dir(&debs).map_err(|e| at(&debs, e))?.flatten() {
        let status = rig.workspace.program("dpkg").arg("-x").arg(deb.path()).arg(&root).status();
        if !status.is_ok_and(|s| s.success()) {
            return Err(format!("cannot unpack {}", deb.path().display()));
        }
    }
    merge(&root)?;
    fs::write(&done, wanted.join("\n")).map_err(|e| at(&done, e))
}

/// The sources of a release's packages, in the format of sources.list(5).
pub(super) fn sources_of(rig: &Rig<'_>, release: &Release) -> Result<String, String> {
    let apt = Apt { rig, lists: None, fresh: Cell::new(false) };
    let own = own_codename()?;
    Ok(sources(&apt.targets()?, &own, release))
}

fn own_codename() -> Result<String, String> {
    let file = Path::new("/etc/os-release");
    let known = fs::read_to_string(file).map_err(|e| at(file, e))?;
    codename(&known)
        .map(String::from)
        .ok_or_else(|| format!("{} has no VERSION_CODENAME: is this Debian?", file.display()))
}

/// If a release has everything below `usr`, creates the symbolic links at the old paths, as an
/// installation does.
fn merge(root: &Path) -> Result<(), String> {
    for folder in ["bin", "sbin", "lib"] {
        let old = root.join(folder);
        if !old.exists() {
            std::os::unix::fs::symlink(format!("usr/{folder}"), &old).map_err(|e| at(&old, e))?;
        }
    }
    Ok(())
}

/// apt with the lists of one release.
struct Apt<'a> {
    rig: &'a Rig<'a>,
    /// The folder of this release's package lists; None: the machine's lists are used.
    lists: Option<PathBuf>,
    /// Whether the lists were fetched just now.
    fresh: Cell<bool>,
}

impl<'a> Apt<'a> {
    fn of(rig: &'a Rig<'a>, release: &Release) -> Result<Self, String> {
        let machines = Self { rig, lists: None, fresh: Cell::new(false) };
        let own = own_codename()?;
        // The machine's other archives are configured by its user.
        if own == release.codename && release.kernel_from.is_empty() {
            return Ok(machines);
        }
        let from = sources(&machines.targets()?, &own, release);
        if from.is_empty() {
            return Err(format!(
                "apt has no sources of Debian's {own}, which the rig would ask for {}",
                release.codename
            ));
        }
        let dir = place(rig, release).join("apt");
        for folder in ["state/lists", "cache"].map(|folder| dir.join(folder)) {
            fs::create_dir_all(&folder).map_err(|e| at(&folder, e))?;
        }
        for (name, text) in [("sources.list", from), ("status", String::new()), ("apt.conf", conf(&dir))] {
            let file = dir.join(name);
            fs::write(&file, text).map_err(|e| at(&file, e))?;
        }
        Ok(Self { lists: Some(dir), ..machines })
    }

    /// True if the package lists may be outdated: the archive may have replaced packages that they
    /// name.
    fn may_be_stale(&self) -> bool {
        self.lists.is_some() && !self.fresh.get()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.rig.workspace.program(program);
        if let Some(dir) = &self.lists {
            command.env("APT_CONFIG", dir.join("apt.conf"));
        }
        command
    }

    fn update(&self) -> Result<(), String> {
        self.fresh.set(true);
        run(self.command("apt-get").args(["-q", "update"]))
    }

    /// Returns the output of a command; if there is none, fetches the lists and runs the command
    /// again.
    fn ask(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let asked = || self.command(program).args(args).output();
        let said = |out: std::process::Output| String::from_utf8_lossy(&out.stdout).into_owned();
        let answer = asked().map(said).unwrap_or_default();
        if !answer.trim().is_empty() {
            return Ok(answer);
        }
        // The machine's lists were never fetched.
        self.update()?;
        asked().map(said).map_err(|e| format!("{program}: {e}"))
    }

    /// Returns the sources, a line each with URI, release and component.
    fn targets(&self) -> Result<String, String> {
        let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
        self.ask("apt-get", &["indextargets", "--format", format, "Created-By: Packages"])
    }

    /// All packages, including those of the kernel that Debian's metapackage names.
    fn wanted(&self, release: &Release) -> Result<Vec<String>, String> {
        let from = format!("APT::Default-Release={}{}", release.codename, release.kernel_from);
        let args = match release.kernel_from {
            "" => vec!["depends"],
            _ => vec!["-o", &from, "depends"],
        };
        let depends = |package: &str| self.ask("apt-cache", &[&args[..], &[package]].concat());
        let text = depends("linux-image-amd64")?;
        let image = depended(&text).find(|name| name.starts_with("linux-image-"));
        let image =
            image.ok_or("apt knows no package linux-image-amd64: is this Debian? as root: apt-get update")?;
        let text = depends(image)?;
        let kernel = std::iter::once(image).chain(parts(&text, image)).map(String::from);
        Ok(release.packages().into_iter().chain(kernel).collect())
    }
}

/// The packages that a package depends on, from the output of `apt-cache depends`.
fn depended(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "))
}

/// Packages of the same version that a kernel's image depends on: from 7.x on the image and the
/// modules are separate packages.
fn parts<'a>(text: &'a str, image: &str) -> impl Iterator<Item = &'a str> {
    let version = image.trim_start_matches("linux-image").to_string();
    depended(text).filter(move |name| name.ends_with(&version))
}

/// An apt.conf(5) for lists in `dir`. The machine's proxies, trusted keys and limits stay valid;
/// its sources and pins do not.
fn conf(dir: &Path) -> String {
    let dir = dir.display();
    let own = [
        ("Dir::Etc::SourceList", format!("{dir}/sources.list")),
        ("Dir::Etc::SourceParts", "/dev/null".into()),
        ("Dir::Etc::Preferences", "/dev/null".into()),
        ("Dir::Etc::PreferencesParts", "/dev/null".into()),
        ("Dir::State", format!("{dir}/state")),
        ("Dir::State::Status", format!("{dir}/status")),
        ("Dir::Cache", format!("{dir}/cache")),
        ("Acquire::Languages", "none".into()),
        // The sandbox user may not write here.
        ("APT::Sandbox::User", "root".into()),
    ];
    own.map(|(name, value)| format!("{name} \"{value}\";\n")).concat()
}

fn codename(text: &str) -> Option<&str> {
    text.lines().find_map(|line| Some(line.strip_prefix("VERSION_CODENAME=")?.trim_matches('"')))
}

/// A sources.list(5) for another release: the machine's sources of its own release, updates and
/// security, with the other codename; and the archive of that release's kernel.
fn sources(targets: &str, own: &str, wanted: &Release) -> String {
    let keyring = if Path::new(KEYRING).exists() { format!("[signed-by={KEYRING}] ") } else { String::new() };
    let Release { codename, kernel_from, .. } = wanted;
    let lines: BTreeSet<String> = targets
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (uri, release) = (words.next()?, words.next()?);
            let part = release.strip_prefix(own)?;
            let ours = words.next() == Some("main") && ["", "-updates", "-security"].contains(&part);
            let more = (part.is_empty() && !kernel_from.is_empty()).then_some(*kernel_from);
            ours.then(|| [Some(part), more].into_iter().flatten().map(move |part| (uri, part)))
        })
        .flatten()
        .map(|(uri, part)| format!("deb {keyring}{uri} {codename}{part} main\n"))
        .collect();
    lines.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_release_is_asked_for_where_the_machine_asks_for_its_own() {
        let targets = "http://one.example/debian/ bookworm main\n\
             http://one.example/debian/ bookworm contrib\n\
             http://one.example/debian/ bookworm-backports main\n\
             http://two.example/security/ bookworm-security main\n\
             http://two.example/security/ bookworm-security main\n\
             http://three.example/ tools-bookworm main\n\
             http://four.example/ nodistro main\n";
        let release = |name| Release::of_guests(name).unwrap();
        let list = sources(targets, "bookworm", release("13"));
        let places =
            |list: &str| list.lines().map(|l| l[l.find("http").unwrap()..].to_string()).collect::<Vec<_>>();
        let own =
            ["http://one.example/debian/ trixie main", "http://two.example/security/ trixie-security main"];
        assert_eq!(places(&list), own);
        assert!(list.lines().all(|l| l.starts_with("deb ")), "{list}");
        assert_eq!(sources(targets, "noble", release("13")), "");
        let list = sources(targets, "bookworm", release("13-backports"));
        assert_eq!(places(&list), [own[0], "http://one.example/debian/ trixie-backports main", own[1]]);
    }

    #[test]
    fn a_kernel_in_several_packages_is_fetched_whole() {
        let image = "linux-image-7.3.4+deb13-amd64";
        let text = "linux-image-7.3.4+deb13-amd64\n |Depends: dracut\n  Depends: linux-base\n  \
             Depends: linux-base-7.3.4+deb13-amd64\n  Depends: linux-modules-7.3.4+deb13-amd64\n  \
             Recommends: apparmor\n";
        let found: Vec<_> = parts(text, image).collect();
        assert_eq!(found, ["linux-base-7.3.4+deb13-amd64", "linux-modules-7.3.4+deb13-amd64"]);
        assert_eq!(parts("  Depends: kmod\n  Depends: linux-base\n", "linux-image-6.1.0-9-amd64").count(), 0);
    }

    #[test]
    fn the_machine_says_which_release_it_is() {
        assert_eq!(codename("NAME=x\nVERSION_CODENAME=bookworm\n"), Some("bookworm"));
        assert_eq!(codename("VERSION_CODENAME=\"trixie\"\n"), Some("trixie"));
        assert_eq!(codename("NAME=x\n"), None);
    }

    #[test]
    fn old_paths_lead_below_usr_where_all_of_it_is() {
        let root = std::env::temp_dir().join(format!("rig-merge-{}", std::process::id()));
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        fs::create_dir_all(root.join("bin")).unwrap();
        merge(&root).unwrap();
        assert_eq!(fs::read_link(root.join("lib")).unwrap(), Path::new("usr/lib"));
        assert!(fs::read_link(root.join("bin")).is_err(), "this release has a folder of its own");
        fs::remove_dir_all(root).unwrap();
    }
}
