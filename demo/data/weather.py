"""The weather tool: the call with the right city, and the sentence after its result."""

from __future__ import annotations

from choice import Chooser
from talk import Talk, ToolDef
from words import CONDITIONS, city, invented, new_key, one_of

_NAMES = "get_weather weather current_weather get_current_weather weather_lookup fetch_weather getWeather forecast get_forecast check_weather lookup_weather weather_now".split()
_ABOUT = (
    "[Get|Gets|Look up|Fetch|Return|Returns] the [current|] weather [in|for|of] a [city|place|location][|.]", "[Current|The] weather [of|in|for] a [city|place|location][|.]", "Weather", "", "[Tells|Says] what the weather is like[|.]", "Get current temperature and conditions for a given location", "[Weather|Forecast] service",
    "[Get|Return] the [weather|temperature] [now|today][|.]",
)  # fmt: skip
_PLACE = "city location place town city_name where loc name q address region".split()
_ASKED = (
    "[what's|what is|how's|how is|whats] the weather [in|like in] {city}[| today| now| right now][?|]", "weather [in|for|at] {city}[?||, please]", "[is it|will it be] [raining|sunny|cold|warm|hot|snowing|windy] in {city}[| today| now][?|]", "how [cold|warm|hot] is it in {city}[?|]", "[do I need|should I take] [an umbrella|a coat|a jacket] in {city}[| today][?|]",
    "[tell me|check|look up|get me|find] the weather [in|for] {city}[.|]", "[what's|what is] the [temperature|forecast] [in|for] {city}[?|]", "I'm [going|travelling|flying] to {city}, [what's|how is] the weather[?|]", "{city} weather[?||, please| today]", "[can you|could you|please] [check|look up|tell me] the weather [in|for] {city}[?|]",
    "does it rain in {city}[?|]", "how does it look outside in {city}[?|]", "I live in {city}, what is the weather[?|]", "weather report [for|of] {city}[.|]",
)  # fmt: skip
_NEXT = ("and [in|] {city}[?|]", "[what about|how about] {city}[?|]", "[the same|same] for {city}[.|]", "and what about {city}[?|]", "{city}[?|]", "now {city}[.|]", "[also|and] in {city}[, please|]")  # fmt: skip
_WITHOUT = "I cannot see the weather. Declare a tool such as get_weather with your request, and I will call it."


def weather_tool(c: Chooser) -> ToolDef:
    """A weather tool, sometimes with a unit to choose."""
    name = c.of(_NAMES) if c.chance(0.75) else f"{c.any(('get', 'read', 'ask'))}_{invented(c)}_weather"
    key = c.of(_PLACE) if c.chance(0.75) else new_key(c, c.of(_PLACE))
    detail = {
        "description": c.any(
            ("The city", "City and country, for example Paris", "Name of the city", "the place to look up")
        )
    }
    properties = {key: {"type": "string"} | (detail if c.chance(0.5) else {})}
    if c.chance(0.25):
        properties[c.any(("unit", "units"))] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    return ToolDef("weather", name, c.expand(c.of(_ABOUT)), {"city": key}, properties, (key,))


def weather_asked(talk: Talk) -> None:
    """One question about the weather, and now and then a follow-up."""
    c, tool = talk.c, talk.tools.get("weather")
    talk.skill = "weather"
    place = city(c)
    talk.user(c.asked(_ASKED, city=place))
    if tool is None:
        return talk.answer(_WITHOUT, "The user asks about the weather. I have no tool for that.")
    _looked_up(talk, tool, place)
    if c.chance(0.25):
        place = city(c)
        talk.user(c.asked(_NEXT, city=place))
        _looked_up(talk, tool, place)
    return None


def _looked_up(talk: Talk, tool: ToolDef, place: str) -> None:
    c = talk.c
    talk.call(
        tool,
        {"city": place},
        c.any(
            (
                f"The user asks about the weather in {place}. I call {tool.name}.",
                f"For the weather in {place} there is {tool.name}.",
            )
        ),
    )
    degrees, sky = c.number(-15, 40), one_of(c, CONDITIONS)
    if c.chance(0.06):
        talk.result(
            c.any(({"error": "not found"}, "error: unknown city", "Error: timeout", {"error": "service unavailable"}))
        )
        return talk.answer(f"The weather tool reports an error for {place}.", "The tool gave an error. I pass it on.")
    warm = c.any(("temperature", "temp", "temp_c", "temperature_c", "degrees", "celsius"))
    cold = c.any(("condition", "conditions", "sky", "weather", "description", "summary", "forecast"))
    where = {c.any(("city", "location", "place")): place} if c.chance(0.35) else {}
    more = {c.any(("humidity", "wind", "wind_kmh", "pressure")): c.number(1, 99)} if c.chance(0.25) else {}
    pair = {warm: degrees, cold: sky} if c.chance(0.6) else {cold: sky, warm: degrees}
    kind = c.number(0, 9)
    if kind < 5:
        talk.result(where | pair | more)
        said = f"{degrees} °C and {sky} in {place}"
    elif kind < 7:
        talk.result(
            c.any(
                (
                    f"{degrees} degrees, {sky}",
                    f"{sky}, {degrees} °C",
                    f"{degrees}°C, {sky}",
                    f"{sky.capitalize()}, {degrees} degrees",
                    f"It is {degrees} degrees and {sky}.",
                    f"{place}: {sky}, {degrees} C",
                )
            )
        )
        said = f"{degrees} °C and {sky} in {place}"
    elif kind < 9:
        talk.result(c.any((sky, {cold: sky}, f"{sky} in {place}", where | {cold: sky})))
        said = f"{sky} in {place}"
    else:
        talk.result(c.any((str(degrees), {warm: degrees}, f"{degrees} °C", where | {warm: degrees})))
        said = f"{degrees} °C in {place}"
    talk.answer(f"The weather: {said}.", f"The tool has answered for {place}.")
    return None
