"""Completion scripts for bash, zsh and fish: static, so that Tab never waits for Python.

tyro writes such scripts too, but for one command each, and they start Python with every Tab. In
each script the word before the cursor belongs to the last option before it, if that one still
takes a value, and otherwise to the command itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from enresnet.cli.command_words import CommandWords, Option, Values

_HEAD = "Completion of enresnet in {}. Written by: enresnet completion {}"

_BASH = r"""
_enresnet() {
    local IFS=$' \t\n' current=$2 line=${COMP_LINE:0:COMP_POINT} joined=${COMP_WORDS[COMP_CWORD]}
    local whole=${line##*[[:space:]]} prefix='' key='' option=''
    local options='' takes=0 words='' paths='' word
    local -i here=COMP_CWORD start=1 i distance
    COMPREPLY=()
    # Bash splits words at = and @ too. The whole one begins at "here"; what we offer replaces
    # "current", which is the end of it.
    while [[ $joined != "$whole" && $here -gt 1 ]]; do
        here+=-1
        joined=${COMP_WORDS[here]}$joined
    done
    if [[ $joined == "$whole" && $whole == *"$current" ]]; then
        prefix=${whole%"$current"}
    else
        here=COMP_CWORD
    fi
    if ((here > 1)); then
        key=${COMP_WORDS[1]} start=2
        case "$key" in
            @BRANCHES@) ((here > 2)) && key+=" ${COMP_WORDS[2]}" start=3 ;;
        esac
    fi
    for ((i = here - 1; i >= start; i--)); do
        [[ ${COMP_WORDS[i]} == --?* ]] && { option=${COMP_WORDS[i]}; break; }
    done
    distance=here-i
    if [[ $prefix == --*=* ]]; then
        option=${prefix%%=*} prefix=${prefix#*=} distance=1
    elif [[ $prefix$current == -* ]]; then
        _enresnet_options "$key"
        COMPREPLY=($(compgen -W "$options" -- "$current"))
        return
    fi
    [[ -n $option ]] && _enresnet_values "$key $option"
    if [[ $takes == 0 ]] || { [[ $takes == 1 ]] && ((distance > 1)); }; then
        takes=0 words='' paths=''
        _enresnet_values "$key"
        [[ $takes == 0 ]] && { _enresnet_options "$key"; words=$options; }
    fi
    for word in $words; do
        [[ $word == "$prefix$current"* ]] && COMPREPLY+=("${word#"$prefix"}")
    done
    if [[ -n $paths ]]; then
        i=${#COMPREPLY[@]}
        while IFS= read -r word; do
            COMPREPLY+=("${word#"$prefix"}")
        done < <(compgen -f -- "$prefix$current")
        ((${#COMPREPLY[@]} > i)) && compopt -o filenames 2>/dev/null
    fi
    return 0
}
complete -F _enresnet enresnet
"""

_ZSH = r"""
_enresnet() {
    local key='' option='' takes=0 words_of='' paths=''
    local -i i start=2 distance found=1
    local -a offered
    if (( CURRENT > 2 )); then
        key=$words[2] start=3
        case "$key" in
            @BRANCHES@) (( CURRENT > 3 )) && key+=" $words[3]" start=4 ;;
        esac
    fi
    for (( i = CURRENT - 1; i >= start; i-- )); do
        [[ $words[i] == --?* ]] && { option=$words[i]; break }
    done
    distance=$(( CURRENT - i ))
    if [[ $PREFIX == --*=* ]]; then
        option=${PREFIX%%=*} distance=1
        compset -P 1 '*='
    elif [[ $PREFIX == -* ]]; then
        _enresnet_options "$key"
        _describe -o option offered
        return
    fi
    [[ -n $option ]] && _enresnet_values "$key $option"
    if [[ $takes == 0 ]] || { [[ $takes == 1 ]] && (( distance > 1 )) }; then
        takes=0 words_of='' paths=''
        _enresnet_values "$key"
        if [[ $takes == 0 ]]; then
            _enresnet_options "$key"
            _describe -o option offered
            return
        fi
        _enresnet_inside "$key"
        if (( $#offered )); then
            _describe command offered
            return
        fi
    fi
    [[ -n $words_of ]] && compadd -- ${=words_of} && found=0
    [[ -n $paths ]] && _files && found=0
    return found
}
if [[ $funcstack[1] == _enresnet ]]; then
    _enresnet "$@"
elif (( $+functions[compdef] )); then
    compdef _enresnet enresnet
fi
"""

_FISH = r"""
# Whether the words before the cursor begin with a command.
function __enresnet_at
    set -l given (commandline -opc)
    set -l count (count (string split -n ' ' -- $argv[1]))
    test (count $given) -gt $count; or return 1
    test $count -eq 0; or test "$given[2..$(math $count + 1)]" = "$argv[1]"
end

# Whether they are a command and nothing else.
function __enresnet_only
    test (count (commandline -opc)) -eq (math 1 + (count (string split -n ' ' -- $argv[1])))
    and __enresnet_at $argv[1]
end

# Whether they begin with a command, and the last option is one of those that follow.
function __enresnet_after
    __enresnet_at $argv[1]; or return 1
    set -l given (string match -- '--?*' (commandline -opc))
    test (count $given) -gt 0; and contains -- $given[-1] $argv[2..]
end

# Whether they begin with a command, and the last option is none of those.
function __enresnet_free
    __enresnet_at $argv[1]; and not __enresnet_after $argv
end

complete -c enresnet -e
complete -c enresnet -f
"""


def bash_script(commands: Sequence[CommandWords]) -> str:
    """Return the script for bash, 3.2 or later."""
    options = (
        f"        {_quoted(_key(command))}) "
        f"options={_quoted(' '.join(option.name for option in command.options))} ;;"
        for command in commands
    )
    return "\n".join(
        [
            f"# {_HEAD.format('bash', 'bash')}",
            *_function("_enresnet_options", options),
            *_function("_enresnet_values", _cases(commands, "words")),
            _BASH.strip().replace("@BRANCHES@", _branches(commands)),
            "",
        ]
    )


def zsh_script(commands: Sequence[CommandWords]) -> str:
    """Return the script for zsh, to be sourced or put into $fpath as _enresnet."""
    inside = {
        _key(command): [one for one in commands if one.name and one.name[:-1] == command.name]
        for command in commands
        if command.branches
    }
    options = (
        f"        {_quoted(_key(command))}) offered=(\n{_described(command.options)}\n        ) ;;"
        for command in commands
    )
    branches = (
        f"        {_quoted(key)}) offered=(\n{_described(found)}\n        ) ;;"
        for key, found in inside.items()
    )
    return "\n".join(
        [
            "#compdef enresnet",
            f"# {_HEAD.format('zsh', 'zsh')}",
            *_function("_enresnet_options", options),
            *_function("_enresnet_inside", branches),
            *_function("_enresnet_values", _cases(commands, "words_of")),
            _ZSH.strip().replace("@BRANCHES@", _branches(commands)),
            "",
        ]
    )


def fish_script(commands: Sequence[CommandWords]) -> str:
    """Return the script for fish, 3.4 or later."""
    lines = [f"# {_HEAD.format('fish', 'fish')}", _FISH.strip()]
    for command in commands:
        lines += ["", *_fish_lines(command)]
    for command in commands:
        if command.name:
            last = command.name[-1]
            where = f"__enresnet_only {_fish(' '.join(command.name[:-1]))}"
            lines.append(_complete(where, f"-a {_fish(last)}", command.text))
    return "\n".join([*lines, ""])


def _fish_lines(command: CommandWords) -> Iterable[str]:
    key = _fish(_key(command))
    at = f"__enresnet_only {key}" if command.branches else f"__enresnet_at {key}"
    for option in command.options:
        short = len(option.name) == 2
        words = f"-s {option.name[1:]}" if short else f"-l {option.name[2:]}"
        if option.values is not None:
            words += f" -r {_offer(option.values)}" if option.values.paths else " -x"
            words += "" if option.values.paths else f" {_offer(option.values)}"
        yield _complete(at, words.rstrip(), option.text)
    several = [one for one in command.options if one.values is not None and one.values.many]
    for option in several:  # fish itself knows of one value an option
        if option.values is not None and (option.values.words or option.values.paths):
            yield _complete(f"__enresnet_after {key} {option.name}", _offer(option.values), "")
    if command.values is not None and not command.branches:
        names = " ".join(option.name for option in several)
        yield _complete(f"__enresnet_free {key} {names}".rstrip(), _offer(command.values), "")


def _offer(values: Values) -> str:
    words = f"-a {_fish(' '.join(values.words))}" if values.words else ""
    return f"{words} -F".strip() if values.paths else words


def _complete(where: str, words: str, text: str) -> str:
    described = f" -d {_fish(text)}" if text else ""
    return f"complete -c enresnet -n {_fish(where)} {words}{described}"


def _fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _key(command: CommandWords) -> str:
    return " ".join(command.name)


def _branches(commands: Sequence[CommandWords]) -> str:
    return " | ".join(_quoted(_key(one)) for one in commands if one.branches and one.name)


def _cases(commands: Sequence[CommandWords], variable: str) -> Iterable[str]:
    """Yield the cases of what follows a command, or an option of it: alike ones together."""
    keys: dict[Values, list[str]] = {}
    for command in commands:
        if command.values is not None:
            keys.setdefault(command.values, []).append(_key(command))
        for option in command.options:
            if option.values is not None:
                name = f"{_key(command)} {option.name}"
                keys.setdefault(option.values, []).append(name)
    for values, names in keys.items():
        actions = [f"takes={'many' if values.many else 1}"]
        actions += [f"{variable}={_quoted(' '.join(values.words))}"] if values.words else []
        actions += ["paths=1"] if values.paths else []
        alike = " | \\\n        ".join(map(_quoted, names))
        yield f"        {alike})\n            {' '.join(actions)} ;;"


def _function(name: str, cases: Iterable[str]) -> list[str]:
    return [f"{name}() {{", '    case "$1" in', *cases, "    esac", "}", ""]


def _described(words: Iterable[Option | CommandWords]) -> str:
    """Return words with descriptions as zsh's _describe takes them."""
    lines = []
    for word in words:
        name = word.name if isinstance(word, Option) else word.name[-1]
        lines.append("            " + _quoted(f"{name}:{word.text}" if word.text else name))
    return "\n".join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"
