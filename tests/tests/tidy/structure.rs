//! Structure: files have no cyclic dependencies, files and functions have limited lengths, type
//! names are unique.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::project::{Problems, read, sources};

/// The crates whose structure is checked, by their source directories.
const CRATES: [&str; 3] = ["shared/src", "infra/local/src", "infra/cli/src"];

/// The maximum number of lines of a file, without the tests at its end.
const MAX_FILE_LINES: usize = 600;

/// The maximum number of lines of a function in `flows`.
const MAX_FUNCTION_LINES: usize = 60;

/// The maximum number of parameters of a function in `flows`, including the receiver.
const MAX_PARAMETERS: usize = 5;

/// A module path from the root of its crate.
type Path = Vec<String>;

/// A module in its own file.
struct Module {
    file: String,
    path: Path,
    syntax: syn::File,
}

/// Reads the modules of a crate, except test modules.
fn modules(root: &str) -> Vec<Module> {
    let parsed: Vec<Module> = sources(&format!("{root}/"))
        .into_iter()
        .map(|file| {
            let text = read(&file).unwrap();
            let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
            let inner = file[root.len() + 1..].trim_end_matches(".rs");
            let path = inner.split('/').map(str::to_owned);
            let path = path.filter(|name| !["mod", "lib", "main"].contains(&name.as_str()));
            let path = path.collect();
            Module { file, path, syntax }
        })
        .collect();
    let tests: BTreeSet<Path> = parsed
        .iter()
        .flat_map(|module| {
            let of_tests = module.syntax.items.iter().filter_map(|item| match item {
                syn::Item::Mod(inner) if is_for_tests(&inner.attrs) => Some(&inner.ident),
                _ => None,
            });
            of_tests.map(|name| [&module.path[..], &[name.to_string()]].concat())
        })
        .collect();
    let is_of_tests = |path: &Path| tests.iter().any(|test| path.starts_with(test));
    parsed
        .into_iter()
        .filter(|module| !is_of_tests(&module.path))
        .collect()
}

/// Returns whether an item is compiled for tests only.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        let condition = list.tokens.to_string();
        attribute.path().is_ident("cfg")
            && (condition.contains("test") && !condition.contains("not"))
    })
}

/// The paths that a file names, in imports and in code.
#[derive(Default)]
struct Names {
    used: BTreeSet<Path>,
    /// Re-exported names, with the paths of their definitions.
    exported: BTreeMap<String, Path>,
}

impl Names {
    fn import(&mut self, tree: &syn::UseTree, before: &Path, exports: bool) {
        let with = |name: &syn::Ident| [&before[..], &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), exports),
            syn::UseTree::Group(group) => {
                let trees = group.items.iter();
                trees.for_each(|tree| self.import(tree, before, exports));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.add(before.clone(), None, exports);
            }
            syn::UseTree::Name(name) => self.add(with(&name.ident), None, exports),
            syn::UseTree::Rename(renamed) => {
                self.add(with(&renamed.ident), Some(&renamed.rename), exports);
            }
            _ => {}
        }
    }

    fn add(&mut self, path: Path, name: Option<&syn::Ident>, exports: bool) {
        if exports {
            let last = path.last().cloned().unwrap_or_default();
            let name = name.map_or(last, ToString::to_string);
            self.exported.insert(name, path);
        } else {
            self.used.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let exports = !matches!(item.vis, syn::Visibility::Inherited);
        self.import(&item.tree, &Vec::new(), exports);
    }

    /// The visibility of an item is not a dependency.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.used.insert(names.collect());
        visit::visit_path(self, path);
    }
}

/// The dependencies between files.
pub(crate) struct Graph {
    files: Vec<String>,
    uses: Vec<BTreeSet<usize>>,
}

impl Graph {
    pub(crate) fn of(root: &str) -> Self {
        let modules = modules(root);
        let at: BTreeMap<Path, usize> = modules
            .iter()
            .enumerate()
            .map(|(index, module)| (module.path.clone(), index))
            .collect();
        let names: Vec<Names> = modules
            .iter()
            .map(|module| {
                let mut names = Names::default();
                names.visit_file(&module.syntax);
                names
            })
            .collect();
        let uses = modules.iter().zip(&names).enumerate();
        let uses = uses.map(|(index, (module, own))| {
            let targets = own.used.iter();
            let targets = targets.filter_map(|path| {
                let path = absolute(path, &module.path, &at)?;
                defined_in(&path, &names, &at, &modules)
            });
            targets.filter(|target| *target != index).collect()
        });
        Self {
            uses: uses.collect(),
            files: modules.into_iter().map(|module| module.file).collect(),
        }
    }

    /// Returns the files that a file uses.
    pub(crate) fn used_by(&self, file: &str) -> impl Iterator<Item = &str> {
        let from = self.files.iter().position(|other| other == file);
        let uses = from.into_iter().flat_map(|from| &self.uses[from]);
        uses.map(|to| &*self.files[*to])
    }

    /// Returns the sets of files that depend on each other.
    fn circles(&self) -> Vec<Vec<&str>> {
        let reached: Vec<BTreeSet<usize>> = (0..self.files.len())
            .map(|from| {
                let mut reached = BTreeSet::new();
                let mut left: Vec<usize> = self.uses[from].iter().copied().collect();
                while let Some(next) = left.pop() {
                    if reached.insert(next) {
                        left.extend(&self.uses[next]);
                    }
                }
                reached
            })
            .collect();
        let circles = (0..self.files.len()).filter_map(|from| {
            let with = reached[from].iter().copied();
            let circle: Vec<usize> = with
                .filter(|other| reached[*other].contains(&from))
                .collect();
            (circle.first() == Some(&from)).then_some(circle)
        });
        let named = |circle: Vec<usize>| circle.iter().map(|at| &*self.files[*at]).collect();
        circles.map(named).collect()
    }
}

/// Returns the path from the root of the crate; `None` if it leads outside the crate.
fn absolute(path: &Path, here: &Path, at: &BTreeMap<Path, usize>) -> Option<Path> {
    let (mut base, mut rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (here.clone(), &path[1..]),
        "super" => (here.clone(), &path[..]),
        name => {
            let child = [&here[..], &[name.to_owned()]].concat();
            (at.contains_key(&child).then(|| here.clone())?, &path[..])
        }
    };
    while rest.first().is_some_and(|name| name == "super") {
        base.pop()?;
        rest = &rest[1..];
    }
    Some([&base[..], rest].concat())
}

/// Returns the file that defines the target of a path, following re-exports.
fn defined_in(
    path: &Path,
    names: &[Names],
    at: &BTreeMap<Path, usize>,
    modules: &[Module],
) -> Option<usize> {
    let mut path = path.clone();
    for _ in 0..8 {
        let depth = (0..=path.len())
            .rev()
            .find(|depth| at.contains_key(&path[..*depth]))?;
        let module = at[&path[..depth]];
        let Some(name) = path.get(depth) else {
            return Some(module);
        };
        let Some(exported) = names[module].exported.get(name) else {
            return Some(module);
        };
        let Some(next) = absolute(exported, &modules[module].path, at) else {
            return Some(module);
        };
        path = [&next[..], &path[depth + 1..]].concat();
    }
    None
}

#[test]
fn files_of_a_crate_have_no_cyclic_dependencies() {
    let mut problems = Problems::default();
    for root in CRATES {
        let graph = Graph::of(root);
        assert!(graph.uses.iter().map(BTreeSet::len).sum::<usize>() > graph.files.len());
        for circle in graph.circles() {
            let uses = circle.iter().flat_map(|file| {
                let from = graph.files.iter().position(|other| other == file).unwrap();
                let within = graph.uses[from].iter().map(|to| &*graph.files[*to]);
                let within = within.filter(|to| circle.contains(to));
                within.map(move |to| format!("\n    {file} uses {to}"))
            });
            let rule = format!(
                "{} files use each other:{}",
                circle.len(),
                uses.collect::<String>()
            );
            problems.add(root, rule, "move what two of them share to a separate file");
        }
    }
    problems.report();
}

#[test]
fn no_file_exceeds_the_line_limit() {
    let mut problems = Problems::default();
    for module in CRATES.iter().flat_map(|root| modules(root)) {
        let text = read(&module.file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next();
        let lines = code.unwrap_or_default().lines().count();
        if lines > MAX_FILE_LINES {
            let rule = format!("has {lines} lines, more than {MAX_FILE_LINES}");
            problems.add(module.file, rule, "split the file by topic");
        }
    }
    problems.report();
}

/// The functions of a file: name, parameters, position.
#[derive(Default)]
struct Functions {
    found: Vec<(String, usize, Span)>,
}

impl Functions {
    fn add(&mut self, signature: &syn::Signature, whole: Span) {
        let name = signature.ident.to_string();
        self.found.push((name, signature.inputs.len(), whole));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, item.block.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, item.block.span());
        visit::visit_impl_item_fn(self, item);
    }
}

#[test]
fn functions_of_flows_are_short_and_take_few_parameters() {
    let mut problems = Problems::default();
    let modules = modules(CRATES[0]);
    let flows = modules.iter();
    let flows = flows.filter(|module| module.path.starts_with(&["flows".to_owned()]));
    for module in flows {
        let mut functions = Functions::default();
        functions.visit_file(&module.syntax);
        for (name, parameters, span) in functions.found {
            let (first, last) = (span.start().line, span.end().line);
            let lines = last - first;
            if lines > MAX_FUNCTION_LINES || parameters > MAX_PARAMETERS {
                let place = format!("{}:{first}", module.file);
                let rule = format!("`{name}` has {lines} lines and {parameters} parameters");
                let remedy = "extract its steps, or pass their common values as a context";
                problems.add(place, rule, remedy);
            }
        }
    }
    problems.report();
}

/// Returns the types of the crate, each with the file that defines it.
pub(crate) fn type_names() -> Vec<(String, String)> {
    let modules = modules(CRATES[0]);
    let names = modules.iter().flat_map(|module| {
        module.syntax.items.iter().filter_map(|item| {
            let name = match item {
                syn::Item::Struct(item) => &item.ident,
                syn::Item::Enum(item) => &item.ident,
                syn::Item::Trait(item) => &item.ident,
                syn::Item::Type(item) => &item.ident,
                _ => return None,
            };
            Some((name.to_string(), module.file.clone()))
        })
    });
    names.collect()
}

#[test]
fn type_names_are_unique_in_the_crate() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, file) in type_names() {
        places.entry(name).or_default().push(file);
    }
    let mut problems = Problems::default();
    for (name, files) in places {
        // Two variants of a type, for different targets or features, are in one file.
        let different: BTreeSet<&String> = files.iter().collect();
        if different.len() > 1 {
            let rule = format!("`{name}` is defined in {}", files.join(" and "));
            problems.add(&files[0], rule, "give each a distinct name");
        }
    }
    problems.report();
}
